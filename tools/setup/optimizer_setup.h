// The optimizer of a configuration and a model: settings, and which parameters are in a group of
// their own.
#pragma once

#include "layers/models/model.h"
#include "optim/optimizer.h"
#include "tools/config/run_config.h"

namespace snug {

// Throws usage on an expression of param_groups that is none, or that is found in no name, and on a
// rate of its own beside a run's rate of 0. Says on standard error what each group holds.
OptimizerConfig optimizer_setup(const RunConfig& config, const Model& model);

}  // namespace snug
