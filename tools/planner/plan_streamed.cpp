// Plans whose layers' weights or gradients, or both, rest with the host: the presets of recompute,
// alike for all layers, with and without their inputs offloaded. Each is recorded whole and
// simulated, the copies' waiting with it, so nothing here knows what streaming costs but by the
// record.
#include <algorithm>
#include <cmath>

#include "engine/core/units.h"
#include "layers/models/recompute.h"
#include "tools/planner/plan_search.h"
#include "tools/planner/residence.h"

namespace snug {
std::vector<PlanSearch::Way> PlanSearch::streamed_ways() const {
  const PlanRequest& r = request_;
  std::vector<Way> ways;
  if (r.global_batch <= 0) return ways;
  const bool packed = r.packed_weights.value_or(WeightPacking::none) != WeightPacking::none;
  // What may rest with the host, and whether it has to.
  const bool set_params = r.offload_params == "cpu", set_grads = r.offload_gradients == "cpu";
  const bool params = (set_params || (r.offload_params == "auto" && r.use_host)) &&
                      r.offload_optimizer != "none" && r.offload_optimizer != "disk" && !packed;
  const bool grads = (set_grads || (r.offload_gradients == "auto" && r.use_host)) &&
                     !r.update_in_backward.value_or(false);
  const LayerWords none;
  std::vector<LayerWords> again = {r.recompute}, away = {r.offload.open() ? none : r.offload};
  if (r.recompute.open()) again = presets();
  if (r.offload.open() && r.use_host) away.emplace_back("inputs");
  const bool set_updates = r.offload_update == "cpu", updates = looks_at_host_updates(r, *cost_);
  const auto add = [&](bool states, bool p, bool g, bool u = false, bool late = false) {
    const bool moved = (p && !set_params) || (g && !set_grads) || (u && !set_updates) ||
                       (states && !p && states_away_.size() > 1 && r.use_host);
    for (const LayerWords& offload : away)
      for (const LayerWords& recompute : again)
        if (away.size() + again.size() == 2 || policies_combine(recompute, offload, *r.model))
          ways.push_back({recompute, offload, states,
                          moved || (r.offload.open() && !offload.none()), p, g, u, late});
  };
  if (params && !set_grads) add(true, true, false);
  if (grads && !set_params && !set_updates)
    for (const bool states : states_away_) add(states, false, true);
  if (params && grads && !set_updates) add(true, true, true);
  if (!updates || !grads || !states_away_.back()) return ways;
  const bool late = may_delay_updates(r), at_once = may_update_at_once(r);
  if (!set_params && at_once) add(true, false, true, true);
  if (params && at_once) add(true, true, true, true);
  if (!set_params && late) add(true, false, true, true, true);
  return ways;
}

// What the link takes in the micro-steps, one way, to bring and fetch what rests there, the inputs
// offloaded with it, and nothing else: weights for each forward and each backward, but for the
// layer at the turn, which has its own still; gradients out in each, back in all but the first;
// where backward updates, the state of the layers. Of ranks what of it is a rank's piece.
double PlanSearch::streamed_link(const Key& key) {
  const Way& way = key.way;
  const Elements& e = elements();
  const auto steps = static_cast<double>(ceil_div(rank_batch(request_), key.micro));
  const auto L = static_cast<double>(std::max<int64_t>(1, request_.model->backward_layers()));
  const auto bytes = [](int64_t elements, DType dtype) {
    return static_cast<double>(elements * size_of(dtype));
  };
  double in = 0, out = 0;
  if (way.params_away)
    in += share(3) * steps *
          (static_cast<double>(e.parts_bytes) +
           (1 - 1 / L) * static_cast<double>(e.parts_bytes_again));
  if (key.gradients.second && way.states_away)
    in += share(1) * static_cast<double>(e.parts_states + masters_away(way, e.trainable_parts));
  if (way.grads_away) {
    const double all = bytes(e.trainable_parts, key.gradients.first);
    in += share(2) * (steps - 1) * all;
    out += share(2) * (steps - 1) * all + share(1) * all;
  }
  if (way.offload == "inputs") {
    in += steps * inputs(key.micro);
    out += steps * inputs(key.micro);
  }
  return cost_->copies_seconds(std::max(in, out)) * (1 - 1e-9);
}

// As the block is with its weights on the device: they are nothing to what it saves and computes.
const LayerWords* PlanSearch::streamed_preset(const Key& key) {
  if (!layers_) return nullptr;
  const auto preset = std::find(presets().begin(), presets().end(), key.way.recompute);
  return preset == presets().end() ? nullptr : &*preset;
}

int64_t PlanSearch::streamed_saved(const Key& key) {
  const LayerWords* const preset = streamed_preset(key);
  if (preset == nullptr) return 0;
  const int64_t layers = request_.model->backward_layers();
  if (layers == 0) return 0;
  const int64_t saved =
      block_options(decide(key)).saved(static_cast<size_t>(preset - presets().data()));
  if (key.way.offload.none()) return saved;
  const int64_t input =
      round_up(static_cast<int64_t>(inputs(key.micro)) / layers, kTensorAlignment);
  return saved - input * layers;
}

double PlanSearch::streamed_again(const Key& key) {
  const LayerWords* const preset = streamed_preset(key);
  if (preset == nullptr) return 0;
  const ModelOptions& ways = block_options(decide(key));
  double seconds = 0;
  for (size_t k = 0; k < ways.kinds.size(); ++k) {
    const BlockOptions& kind = ways.kinds[k];
    double least = INFINITY;
    for (const LayerOption& o : kind.options) least = std::min(least, o.seconds());
    const double own = kind.presets[static_cast<size_t>(preset - presets().data())].seconds();
    seconds += static_cast<double>(ceil_div(rank_batch(request_), key.micro) * ways.layers(k)) *
               (own - least);
  }
  return seconds;
}

const PlanSearch::Streamed& PlanSearch::streamed_bounds(const Key& key) {
  const auto [found, news] = streamed_bounds_.try_emplace(key);
  Streamed& s = found->second;
  if (news) {
    s.saved = streamed_saved(key);
    const double computes = micro_floor(key);
    s.again = streamed_again(key);
    s.micro = std::max(streamed_link(key), computes > 0 ? computes + s.again : 0.0);
  }
  if (!s.update.recorded) s.update = update_floor(key);
  return s;
}

// Weights that rest there need not come back from an update by the host, so there more may be faster.
bool PlanSearch::less_does(const Key& key, int64_t room) {
  if (key.way.updates_away) return false;
  for (const Way& way : streamed_) {
    const bool less = way.params_away <= key.way.params_away &&
                      way.grads_away <= key.way.grads_away &&
                      way.params_away + way.grads_away < key.way.params_away + key.way.grads_away;
    if (!less || way.recompute != key.way.recompute || way.offload != key.way.offload ||
        way.states_away != key.way.states_away || way.updates_away)
      continue;
    const auto found = configs_.find({key.micro, key.head_rows, key.gradients, way});
    if (found == configs_.end() || !found->second) continue;
    double bound = 0;
    if (solve(*found->second, room, 0.0, &bound).feasible) return true;
  }
  return false;
}

PlanSearch::Choice PlanSearch::best_streamed(int64_t room, bool moved, Choice best) {
  struct Group {
    int64_t micro, rows;
    Gradients gradients;
    size_t first, last;  // of the ways
    double floor;
  };
  if (std::none_of(streamed_.begin(), streamed_.end(),
                   [&](const Way& way) { return way.moved == moved; }))
    return best;
  std::vector<std::pair<size_t, size_t>> groups;
  for (size_t i = 0; i < streamed_.size(); ++i) {
    const auto same = [&](bool Way::*what) { return streamed_[i].*what == streamed_[i - 1].*what; };
    if (i == 0 || !same(&Way::states_away) || !same(&Way::params_away) || !same(&Way::grads_away) ||
        !same(&Way::updates_away) || !same(&Way::late))
      groups.emplace_back(i, i);
    groups.back().second = i + 1;
  }
  std::vector<Group> open;
  for (const int64_t micro : micros()) {
    if (groups.empty() || !block_fits(micro, room)) continue;
    for (const int64_t rows : head_chunks(micro)) {
      for (const Gradients& gradient : gradients(micro))
        for (const auto& [first, last] : groups) {
          const Way& way = streamed_[first];
          if (way.grads_away && gradient.second) continue;  // which has none to keep
          // The first of a group offloads least.
          const Key key{micro, rows, gradient, way};
          const double least = std::max(micro_floor(key), streamed_link(key));
          open.push_back({micro, rows, gradient, first, last, least + update_floor(key).seconds});
        }
    }
  }
  std::stable_sort(open.begin(), open.end(),
                   [](const Group& a, const Group& b) { return a.floor < b.floor; });
  std::map<std::pair<size_t, Gradients>, int64_t> residents;  // of a group, the batch left out
  for (const Group& o : open) {
    if (best.feasible && o.floor >= best.step_seconds) break;
    const std::pair group{o.first, o.gradients};
    const auto key_of = [&](size_t way) {
      return Key{o.micro, o.rows, o.gradients, streamed_[way]};
    };
    // Without a record: what layers leave on the device is known, and seconds that nothing beats.
    const auto hopeless = [&](size_t i) {
      const Way& way = streamed_[i];
      if (way.moved != moved) return true;
      const Key key = key_of(i);
      if (way.offload.none() && inputs(o.micro) > static_cast<double>(room)) return true;
      const auto known = residents.find(group);
      const int64_t base = known != residents.end() ? known->second : 0;
      const Streamed& bounds = streamed_bounds(key);
      if (base + bounds.saved > room) return true;
      return best.feasible && bounds.seconds() >= best.step_seconds;
    };
    bool hope = false;
    for (size_t i = o.first; i < o.last && !hope; ++i) hope = !hopeless(i);
    if (!hope) continue;
    residents[group] = config(key_of(o.last - 1))->base;
    for (size_t i = o.first; i < o.last; ++i) {
      if (hopeless(i)) continue;
      // What leaves less with the host has less to wait for.
      if (less_does(key_of(i), room)) continue;
      const Config& c = *config(key_of(i));
      double bound = 0;
      Choice choice = solve(c, room, 0.0, &bound);
      // An update in backward does the same work: what the sums of seconds round is no reason.
      const double most = best.step_seconds * (o.gradients.second ? 1 - 1e-9 : 1.0);
      if (choice.feasible && (!best.feasible || choice.step_seconds < most))
        best = std::move(choice);
    }
  }
  return best;
}

}  // namespace snug
