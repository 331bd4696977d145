// The plan of a run that exists, made again from what it wrote.
#pragma once

#include <string>

#include "tools/setup/setup.h"

namespace snug {

struct RunPlan {
  RunSetup setup;
  Plan plan;
};

// From config.resolved.yaml and plan.json in a run's folder: the same budget, and where that leads
// elsewhere (a resumed run is pinned) the decisions themselves. Throws usage if the folder holds no
// run, data if either file was changed so that they no longer belong together, or if this program
// on this machine plans another schedule than the run's.
RunPlan plan_of_run(const std::string& folder);

}  // namespace snug
