// What the planner predicts of a run, for its page: the times of its ops and the ladder of budgets.
#pragma once

#include "tools/planner/plan.h"
#include "tools/report/report.h"

namespace snug {

// The plan's ops by the cost model of its request.
StepTimes forecast_times(const PlanRequest& request, const Plan& plan);

// The stairs from the smallest budget that works to the one that buys nothing more, with the rung
// of this plan marked. Empty where nothing trains.
// `search` is the one that found the plan: what it recorded is not recorded again.
std::vector<ReportRung> forecast_ladder(const PlanRequest& request, const Plan& plan,
                                        PlanSearch& search);

}  // namespace snug
