// Plans whose layers' weights rest with the host: the presets of recompute, alike for all layers,
// with and without their inputs offloaded. Each is recorded whole and simulated, the copies'
// waiting with it, so nothing here knows what streaming costs but by the record.
#include <algorithm>

#include "layers/models/recompute.h"
#include "tools/trainer/plan_search.h"

namespace snug {

std::vector<PlanSearch::Way> PlanSearch::streamed_ways() const {
  const PlanRequest& r = request_;
  const bool fixed = r.offload_params == "cpu", open = r.offload_params == "auto" && r.use_host;
  std::vector<Way> ways;
  if (r.global_batch <= 0 || !(fixed || open) || r.offload_optimizer == "none" ||
      r.packed_weights.value_or(WeightPacking::none) != WeightPacking::none)
    return ways;
  std::vector<std::string> again = {r.recompute}, away = {r.offload};
  if (r.recompute == "auto") again = {"none", "norms", "norms+mlp", "mlp+attention+norms", "block"};
  if (r.offload == "auto") away = {"none"};
  if (r.offload == "auto" && r.use_host) away.emplace_back("inputs");
  for (const std::string& offload : away)
    for (const std::string& recompute : again)
      if (away.size() + again.size() == 2 || policies_combine(recompute, offload, *r.model))
        ways.push_back({recompute, offload, true, open, true});
  return ways;
}

// What the link takes to bring every layer twice a micro-step, and nothing else.
double PlanSearch::streamed_floor(int64_t micro) const {
  const ParamTable& table = request_.model->params();
  int64_t elements = 0;
  for (int i = 0; i < table.size(); ++i)
    if (table[i].part >= 0) elements += table[i].elements();
  OpRecord op{};
  op.name = "copy_to_device";
  op.stream = kToDevice;
  op.bytes = elements * size_of(request_.model->precision().compute);
  const int64_t steps = (request_.global_batch + micro - 1) / micro;
  return 2 * static_cast<double>(steps) * cost_->seconds(op, micro * request_.T);
}

PlanSearch::Choice PlanSearch::best_streamed(int64_t room, Choice best) {
  if (streamed_.empty()) return best;
  struct Open {
    int64_t micro, rows;
    Gradients gradients;
    double floor;
  };
  std::vector<Open> open;
  for (const int64_t micro : micros()) {
    if (!block_fits(micro, room)) continue;
    for (const int64_t rows : head_chunks(micro)) {
      double floor_here = streamed_floor(micro);
      if (!ways_.empty() && !ways_.front().moved)
        floor_here = std::max(floor_here, floor(micro, rows));
      for (const Gradients& gradient : gradients(micro))
        open.push_back({micro, rows, gradient, floor_here});
    }
  }
  std::stable_sort(open.begin(), open.end(),
                   [](const Open& a, const Open& b) { return a.floor < b.floor; });
  for (const Open& o : open) {
    if (best.feasible && o.floor >= best.step_seconds) break;
    for (const Way& way : streamed_) {
      if (way.offload == "none" && inputs(o.micro) > static_cast<double>(room)) continue;
      const Config& c = *config({o.micro, o.rows, o.gradients, way});
      double bound = 0;
      Choice choice = solve(c, room, 0.0, &bound);
      // An update in backward does the same work: what the sums of seconds round is no reason.
      const double most = best.step_seconds * (o.gradients.second ? 1 - 1e-9 : 1.0);
      if (choice.feasible && (!best.feasible || choice.step_seconds < most))
        best = std::move(choice);
      // With nothing offloaded, what recomputes or offloads more has all of this to do and more.
      if (best.feasible && way.offload == "none" && &way == &streamed_.front() &&
          c.seconds >= best.step_seconds)
        break;
    }
  }
  return best;
}

}  // namespace snug
