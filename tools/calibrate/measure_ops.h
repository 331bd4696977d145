// The seconds of the engine's ops, measured by training small models with the engine itself.
#pragma once

#include "engine/core/dtype.h"
#include "engine/memory/context.h"
#include "tools/costs/op_rates.h"

namespace snug {

// Trains small models of this compute dtype, some steps each and as many more as fit into
// `seconds`. Of an op's times the median counts. Larger models are left out where they
// would take too long or need more than half of the free memory; with 0 seconds only the smallest
// is trained, without and with dropout.
// They train on the place settings.target, with models of its size.
OpRates measure_ops(DType compute, const Settings& settings, double seconds);

}  // namespace snug
