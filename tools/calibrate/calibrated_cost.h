// The planner's cost model of a machine that was measured.
#pragma once

#include "tools/calibrate/calibration.h"
#include "tools/calibrate/device_calibration.h"
#include "tools/costs/cost_model.h"

namespace snug {

CostModel calibrated_cost(const Calibration& calibration, DType compute);
// Of a GPU, or the emulator as one; with `tf32` products of f32 are those.
CostModel calibrated_cost(const DeviceCalibration& calibration, DType compute, bool tf32);

}  // namespace snug
