// The optimizer of a configuration: what optim names, and how its states rest, which optim_state may
// say in place of the name.
#pragma once

#include "optim/settings.h"
#include "tools/config/run_config.h"

namespace snug {

OptimName optimizer_name(const RunConfig& config);

}  // namespace snug
