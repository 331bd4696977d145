// What several ranks ask of a configuration, and what each of them keeps.
#pragma once

#include "tools/config/run_config.h"
#include "tools/planner/plan.h"

namespace snug {

// Threads of a rank: what was set, else the cores that this process may use, shared by the ranks.
int rank_threads(const RunConfig& config);

// Sets what of a request several ranks leave no choice: all that a rank has stays on its device. Throws
// usage and unsupported where a key asks for what they cannot have.
void settle_ranks(const RunConfig& config, PlanRequest& request);

// zero: auto. The states are shared in any case: it takes no more traffic than sums that all keep, and
// each updates its piece alone. Gradients and weights only where memory asks for it.
void choose_zero(PlanRequest& request);

// Throws usage if `config` asks for several ranks: snug `command` runs in one process.
void refuse_ranks(const RunConfig& config, const char* command);

}  // namespace snug
