#include "tools/trainer/forecast.h"

#include <algorithm>

#include "tools/planner/ladder.h"
#include "tools/planner/plan_search.h"

namespace snug {

StepTimes forecast_times(const PlanRequest& request, const Plan& plan) {
  const CostModel cost =
      request.cost ? *request.cost
                   : CostModel::uncalibrated(plan_instruction_set(), request.settings.threads);
  const int64_t rows = plan.decisions.micro_batch * plan.decisions.T;
  return predicted_times(
      plan, [&](const OpRecord& op) { return cost.seconds(op, rows); }, cost.text());
}

std::vector<ReportRung> forecast_ladder(const PlanRequest& request, const Plan& plan,
                                        PlanSearch& search) {
  constexpr int64_t kBudgets = 17;
  if (request.global_batch <= 0 || plan.minimum_bytes <= 0) return {};
  PlanRequest unlimited = request;
  unlimited.budget = 0;
  const Plan roomy = make_plan(unlimited, search);
  const int64_t most = std::max(plan.minimum_bytes, roomy.engine_bytes + roomy.runtime_bytes);
  std::vector<int64_t> budgets = spread_budgets(plan.minimum_bytes, most, kBudgets);
  if (plan.fits && plan.budget > 0) budgets.push_back(plan.budget);
  const Ladder ladder = staircase(make_ladder(request, budgets, search));
  std::vector<ReportRung> rungs;
  for (const LadderRung& r : ladder.rungs)
    if (r.fits)
      rungs.push_back({r.budget, r.engine_bytes, r.decisions.micro_batch,
                       r.decisions.recompute.text(), r.tokens_per_second, r.sentence, false});
  // The stairs keep the first budget of each plan: the plan is on the last step below its own.
  for (size_t i = rungs.size(); plan.fits && i-- > 0;)
    if (plan.budget == 0 || rungs[i].budget <= plan.budget) {
      rungs[i].current = true;
      break;
    }
  return rungs;
}

}  // namespace snug
