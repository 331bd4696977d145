// From the configuration's keys to the learning-rate schedule.
#pragma once

#include "optim/schedule.h"
#include "tools/config/run_config.h"

namespace snug {

// The schedule of a run of `total_steps` optimizer steps. min_lr turns cosine into
// cosine_with_min_lr.
ScheduleConfig schedule_config(const RunConfig& config, int64_t total_steps);

}  // namespace snug
