// Plans whose layers' weights rest with the host: the presets of recompute, alike for all layers,
// with and without their inputs offloaded. Each is recorded whole and simulated, the copies'
// waiting with it, so nothing here knows what streaming costs but by the record.
#include <algorithm>
#include <cmath>

#include "engine/core/units.h"
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

// What the link takes to bring every layer twice a micro-step, with its input where that is
// offloaded, and nothing else.
double PlanSearch::streamed_floor(int64_t micro, const Way& way) const {
  const ParamTable& table = request_.model->params();
  int64_t elements = 0;
  for (int i = 0; i < table.size(); ++i)
    if (table[i].part >= 0) elements += table[i].elements();
  const auto steps = static_cast<double>(ceil_div(request_.global_batch, micro));
  const auto weights = static_cast<double>(elements * size_of(request_.model->precision().compute));
  return steps * (2 * link_seconds(weights) +
                  (way.offload == "inputs" ? link_seconds(inputs(micro)) : 0.0));
}

// As the block is with its weights on the device: they are nothing to what it saves and computes.
const LayerOption* PlanSearch::streamed_option(const Key& key) {
  if (!layers_) return nullptr;
  const BlockOptions& block = block_options(decide(key));
  const auto name = std::find(block.names.begin(), block.names.end(), key.way.recompute);
  return name == block.names.end()
             ? nullptr
             : &block.options[static_cast<size_t>(name - block.names.begin())];
}

int64_t PlanSearch::streamed_saved(const Key& key) {
  const LayerOption* option = streamed_option(key);
  if (option == nullptr) return 0;
  const ModelSpec& spec = request_.model->spec();
  const int64_t saved = option->saved * spec.L;
  if (key.way.offload == "none") return saved;
  const int64_t input =
      round_up(static_cast<int64_t>(inputs(key.micro)) / spec.L, kTensorAlignment);
  return saved - input * spec.L;
}

double PlanSearch::streamed_again(const Key& key) {
  const LayerOption* option = streamed_option(key);
  if (option == nullptr) return 0;
  double least = INFINITY;
  for (const LayerOption& o : block_options(decide(key)).options)
    least = std::min(least, o.seconds());
  return static_cast<double>(ceil_div(request_.global_batch, key.micro) *
                             request_.model->spec().L) *
         (option->seconds() - least);
}

PlanSearch::Choice PlanSearch::best_streamed(int64_t room, Choice best) {
  if (streamed_.empty()) return best;
  const bool resident = !ways_.empty() && !ways_.front().moved;
  std::vector<Open> open = open_configs(room, [&](int64_t micro, int64_t rows) {
    const double least = streamed_floor(micro, streamed_.front());
    return resident ? std::max(least, floor(micro, rows)) : least;
  });
  for (const Open& o : open) {
    if (best.feasible && o.floor >= best.step_seconds) break;
    for (const Way& way : streamed_) {
      if (way.offload == "none" && inputs(o.micro) > static_cast<double>(room)) continue;
      const Key key{o.micro, o.rows, o.gradients, way};
      if (streamed_saved(key) > room) continue;
      // Micro-steps compute all that any plan's do, and what they recompute; their link brings the
      // weights. The update's brings states, behind them or, in backward, beside them.
      double least = streamed_floor(o.micro, way) + states_floor(true);
      if (resident)
        least =
            std::max(least, floor_away(o.micro, o.rows, o.gradients, true) + streamed_again(key));
      if (best.feasible && least >= best.step_seconds) continue;
      const Config& c = *config(key);
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
