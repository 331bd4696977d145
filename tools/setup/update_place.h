// Who updates, of a device with a host beside it: the key offload_update.
#pragma once

#include "tools/config/run_config.h"
#include "tools/planner/plan.h"

namespace snug {

// Sets what the key leaves no choice: an update by the host takes gradients and states that rest there,
// and where the host is the device it is nobody's choice, but with the permission stale_update, whose
// numbers a CPU has too. Updates one step late that a checkpoint or a plan has are the host's. Throws usage and unsupported where it asks for
// what is not there, or beside keys that leave it nothing to update.
void settle_update(const RunConfig& config, PlanRequest& request);

}  // namespace snug
