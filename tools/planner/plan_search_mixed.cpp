// The part of the search that gives any layer any way: engine/memory/linked_layers.h says what may
// be faster than two groups, and the record of the whole how fast it is.
#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "engine/core/units.h"
#include "tools/planner/plan_search.h"

namespace snug {
namespace {

// Of one layer, and configurations of one budget that are solved: beyond both the bound is the
// Lagrangian one.
constexpr int64_t kMixedLabels = 150;
// Where backward updates, what the update's copies take is left out of the bound, so that it drops
// few labels: fewer are kept from the start.
constexpr int64_t kUpdateLabels = 30;
constexpr int kSolved = 2;
constexpr double kAway = 1 + PlanSearch::kHostMargin;

// The series of budgets: 32 between a power of two and the next.
int64_t series_step(int64_t bytes) {
  const int exponent = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(bytes, 1))) - 1;
  return std::max(kArenaUnit, int64_t{1} << std::max(exponent - 5, 0));
}
// The largest of them that is no more.
int64_t series_below(int64_t bytes) {
  return bytes / series_step(bytes) * series_step(bytes);
}
int64_t series_above(int64_t bytes) {
  const int64_t below = series_below(bytes);
  return below == bytes ? bytes : below + series_step(bytes);
}

}  // namespace

bool PlanSearch::set_limits(const Config& c, int64_t room, LinkedProblem& p) const {
  p.tail = c.tail;
  p.tail_back = c.tail_back;
  p.hidden = c.last;
  p.limit = room < kNoLimit ? room / kArenaUnit * kArenaUnit - c.base : kNoLimit;
  p.host_limit = request_.host_budget > 0 ? request_.host_budget - c.host : kNoLimit;
  // Where both arenas are RAM the host has at most what the device leaves of it.
  if (request_.free_bytes > 0)
    p.host_limit =
        std::min(p.host_limit, request_.free_bytes - c.host - (one_memory() ? c.others : 0));
  return c.others <= room && p.limit >= 0 && p.host_limit >= 0;
}

PlanSearch::Choice PlanSearch::choice_of(const Config& c, const LinkedSolution& s) {
  const StackOptions& options = stack_options(c.decisions);
  Choice choice;
  choice.feasible = choice.moved = true;
  choice.decisions = c.decisions;
  choice.decisions.recompute = linked_recompute(options, s.choice);
  choice.decisions.offload = linked_offload(options, s.choice);
  choice.engine_bytes = std::max(c.others, round_up(c.base + s.peak, kArenaUnit));
  choice.host_bytes = c.host + s.host;
  choice.optimality = "a way for each layer";
  return choice;
}

// Of a step; where that is not less than `below` any other such.
double PlanSearch::mixed_bound(const Config& c, int64_t room, const LinkedProblem& p,
                               double below) {
  const auto [known, news] = config_bounds_.try_emplace({&c, room}, 0);
  if (!news) return known->second;
  // Beyond what rounding may make of either.
  const double layers = (below / kAway - c.outside) / c.micro_steps;
  const double enough = layers + 1e-9 * (std::abs(layers) + c.outside);
  const double bound = kAway * (c.outside + c.micro_steps * linked_bound(p, enough));
  if (bound < below)
    known->second = bound;
  else
    config_bounds_.erase(known);
  return bound;
}

// Those of which something may be faster, the lowest bound first.
std::vector<PlanSearch::MixedConfig> PlanSearch::mixed_configs(int64_t room, double below,
                                                               bool lowest) {
  std::vector<MixedConfig> list;
  for (const Open& o : open_configs(room)) {
    if (o.floor >= below) break;
    const Config& c = stack_config(o.micro, o.rows, o.gradients, o.states);
    LinkedProblem& p = linked(c);
    if (!set_limits(c, room, p)) continue;
    const double bound = mixed_bound(c, room, p, below);
    if (bound < below) list.push_back({&c, &p, bound});
    if (lowest) below = std::min(below, bound);
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const MixedConfig& a, const MixedConfig& b) { return a.bound < b.bound; });
  return list;
}

double PlanSearch::mixed_bound(int64_t room) {
  const auto found = mixed_bounds_.find(room);
  if (found != mixed_bounds_.end()) return found->second;
  const std::vector<MixedConfig> list = mixed_configs(room, INFINITY, true);
  return mixed_bounds_[room] = list.empty() ? INFINITY : list.front().bound;
}

const PlanSearch::Mixed& PlanSearch::mixed(int64_t room) {
  const auto found = mixed_.find(room);
  if (found != mixed_.end()) return found->second;
  Mixed& m = mixed_[room];
  const Choice& groups = best_of_groups(room);
  m.bound = groups.feasible ? groups.step_seconds : INFINITY;
  const double most = m.bound / (1 + kTwoGroupTolerance);
  int solved = 0;
  for (const MixedConfig& open : mixed_configs(room, m.bound, false)) {
    if (open.bound >= m.bound) break;
    const Config& c = *open.config;
    // Where nothing can be faster by what it takes, it is not asked how fast exactly.
    if (open.bound >= most || solved++ == kSolved) {
      m.bound = open.bound;
      break;
    }
    set_limits(c, room, *open.problem);
    const double target = m.choice.feasible ? m.choice.step_seconds : most;
    const LinkedSolution s =
        solve_linked(*open.problem, (target / kAway - c.outside) / c.micro_steps,
                     c.decisions.update_in_backward ? kUpdateLabels : kMixedLabels);
    m.bound = std::min(m.bound, kAway * (c.outside + c.micro_steps * s.bound));
    if (!s.feasible) continue;
    Choice choice = choice_of(c, s);
    if (request_.free_bytes > 0 &&
        (one_memory() ? choice.engine_bytes : 0) + choice.host_bytes > request_.free_bytes)
      continue;
    choice.step_seconds = seconds_of(c, choice.decisions);
    if (choice.step_seconds < target) m.choice = std::move(choice);
  }
  return m;
}

// Between two budgets of the series, the larger included: by halves, as long as a half may have
// something. What two groups take at the lower end is the most that they take between.
void PlanSearch::look_between(int64_t low, int64_t high, Choice& best) {
  const double now = best.feasible ? best.step_seconds : INFINITY;
  const Choice& slowest = best_of_groups(low);
  const double most = slowest.feasible ? slowest.step_seconds / (1 + kTwoGroupTolerance) : INFINITY;
  if (low >= high || mixed_bound(high) >= std::min(now, most)) return;
  if (series_above(low + 1) >= high) {
    const Mixed& m = mixed(high);
    if (m.choice.feasible && m.choice.step_seconds < now) best = m.choice;
    return;
  }
  const int64_t middle = series_below(low + (high - low) / 2);
  look_between(middle, high, best);
  look_between(low, middle, best);
}

std::vector<PlanSearch::Choice> PlanSearch::mixed_stacks(int64_t micro, int64_t head_rows,
                                                         bool states_away, int64_t count,
                                                         uint32_t seed, Gradients gradients) {
  std::vector<Choice> list;
  if (!stacks_) return list;
  const Config& c = stack_config(micro, head_rows, gradients, states_away);
  LinkedProblem& p = linked(c);
  set_limits(c, kNoLimit, p);
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> any(0, static_cast<int>(p.options.size()) - 1);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int> choice(static_cast<size_t>(p.layers));
    for (int& option : choice) option = any(random);
    const LinkedSolution s = evaluate_linked(p, std::move(choice));
    list.push_back(choice_of(c, s));
    list.back().step_seconds = c.outside + c.micro_steps * s.seconds;
  }
  return list;
}

PlanSearch::Choice PlanSearch::with_mixed(int64_t room, Choice best, bool bounded) {
  const double unmoved = best.unmoved_seconds;
  double bound = best.bound_seconds;
  if (room < kNoLimit) {
    const int64_t high = series_below(room);
    int64_t low = high;
    for (int64_t step = series_step(high); low > 0; step *= 2) {
      low = series_below(std::max<int64_t>(low - step, 0));
      if (mixed_bound(low) >= (best.feasible ? best.step_seconds : INFINITY)) break;
    }
    look_between(low, high, best);
    // What nothing under the next larger budget is below, nor stacks under this one.
    if (best.feasible) bound = std::min(bound, best.step_seconds);
    const double stacks = mixed_bound(room);
    if (bounded && stacks < bound)
      bound = std::min(bound, std::max(mixed(series_above(room)).bound, stacks));
  }
  if (!bounded) bound = 0;
  best.bound_seconds = bound;
  best.unmoved_seconds = unmoved;
  return best;
}

}  // namespace snug
