#include "tools/costs/stack_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/units.h"
#include "layers/models/recompute.h"

namespace snug {
namespace {

template <class F>
void for_plans(const StackProblem& p, F&& f) {
  const auto away = static_cast<int>(p.options->away.size());
  const auto kept = static_cast<int>(p.options->kept.size());
  for (int a = 0; a < away; ++a) {
    for (int k = 0; k < kept; ++k)
      for (int64_t first = 1; first < p.layers; ++first) f(stack_plan(p, a, k, first));
    f(stack_plan(p, a, 0, p.layers));
  }
}

LayerWords words_of(const StackProblem& p, const StackPlan& plan, LayerWords StackOption::*words) {
  std::vector<LayerWords> layers(static_cast<size_t>(p.layers),
                                 p.options->kept[static_cast<size_t>(plan.kept)].*words);
  std::fill_n(layers.begin(), plan.first, p.options->away[static_cast<size_t>(plan.away)].*words);
  layers.insert(layers.begin(), static_cast<size_t>(p.options->below), layers.front());
  return LayerWords::of(layers);
}

const StackOption& option_of(const StackOptions& options, int i) {
  const auto at = static_cast<size_t>(i), kept = options.kept.size();
  return at < kept ? options.kept[at] : options.away[at - kept];
}

LayerWords words_of(const StackOptions& options, const std::vector<int>& choice,
                    LayerWords StackOption::*words) {
  std::vector<LayerWords> layers;
  for (const int i : choice) layers.push_back(option_of(options, i).*words);
  layers.insert(layers.begin(), static_cast<size_t>(options.below), layers.front());
  return LayerWords::of(layers);
}

}  // namespace

StackPlan stack_plan(const StackProblem& p, int away, int kept, int64_t first) {
  const StackOption& A = p.options->away[static_cast<size_t>(away)];
  const StackOption& B = p.options->kept[static_cast<size_t>(kept)];
  const int64_t rest = p.layers - first;
  StackPlan plan{.away = away, .kept = kept, .first = first, .host = first * A.host};
  const auto peak = [&](int64_t bytes) { plan.peak = std::max(plan.peak, bytes); };
  const int64_t below = first * A.saved;

  peak(A.forward);
  if (first > 1) peak((first - 1) * A.saved + A.forward_after);
  if (rest > 0) peak(below + A.leaving + B.forward);
  if (rest > 1) peak(below + (rest - 1) * B.saved + B.forward);
  peak(below + rest * B.saved + p.tail);
  if (rest == 0) peak(below + p.tail_back + A.coming);
  if (rest > 1) peak(below + (rest - 1) * B.saved + B.backward);
  if (rest > 0) peak(below + A.coming + B.backward);
  if (first > 1) peak((first - 1) * A.saved + A.coming + A.backward);
  peak(A.backward);

  // The first layer of the second group waits for all that leaves; its backward is when the first
  // of what comes back is asked for.
  const auto n = static_cast<double>(first), m = static_cast<double>(rest);
  double forward = n * A.forward_seconds + m * B.forward_seconds;
  double backward = n * A.backward_seconds + m * B.backward_seconds;
  const double sent = A.before_sent + n * A.to_host, back = n * A.to_device + A.after_arrival;
  if (rest > 0) {
    forward = std::max(forward, sent + (m - 1) * B.forward_seconds);
    backward = std::max(backward, back + (m - 1) * B.backward_seconds);
  } else {
    forward = std::max(forward, sent);
    backward = std::max(backward, back - p.hidden);
  }
  plan.bound = forward + backward;
  return plan;
}

namespace {

// The layers of the first group that may be, for options A then B: what all layers save and what
// both passes compute are sums of two terms, so each of them cuts off one end.
std::pair<int64_t, int64_t> range_of(const StackProblem& p, const StackOption& A,
                                     const StackOption& B, double below) {
  int64_t low = 1, high = p.layers - 1;
  const int64_t room = p.limit - p.tail - p.layers * B.saved, each = B.saved - A.saved;
  if (room < 0) {
    if (each <= 0) return {1, 0};
    low = std::max(low, ceil_div(-room, each));
  } else if (each < 0) {
    high = std::min(high, room / -each);
  }
  const double b = B.forward_seconds + B.backward_seconds;
  const double more = A.forward_seconds + A.backward_seconds - b;
  const double left = below - static_cast<double>(p.layers) * b;
  // One more at either end: these sums round otherwise than those that count.
  constexpr double kAllLayers = 1e12;
  if (more > 0)
    high = std::min(high, static_cast<int64_t>(std::clamp(left / more, -1.0, kAllLayers)) + 1);
  if (more < 0 && left < 0)
    low = std::max(low, static_cast<int64_t>(std::min(left / more, kAllLayers)) - 1);
  return {low, high};
}

}  // namespace

std::vector<StackPlan> stack_plans(const StackProblem& p, double below) {
  std::vector<StackPlan> plans;
  const auto look = [&](const StackPlan& plan) {
    if (plan.bound < below && plan.peak <= p.limit && plan.host <= p.host_limit &&
        plan.peak + plan.host <= p.sum_limit)
      plans.push_back(plan);
  };
  for (size_t a = 0; a < p.options->away.size(); ++a) {
    for (size_t k = 0; k < p.options->kept.size(); ++k) {
      const auto [low, high] = range_of(p, p.options->away[a], p.options->kept[k], below);
      for (int64_t first = low; first <= high; ++first)
        look(stack_plan(p, static_cast<int>(a), static_cast<int>(k), first));
    }
    look(stack_plan(p, static_cast<int>(a), 0, p.layers));
  }
  std::stable_sort(plans.begin(), plans.end(), [](const StackPlan& a, const StackPlan& b) {
    return a.bound != b.bound ? a.bound < b.bound : a.host < b.host;
  });
  return plans;
}

bool least_stack(const StackProblem& p, StackPlan* least) {
  bool found = false;
  for_plans(p, [&](const StackPlan& plan) {
    if (plan.host > p.host_limit || plan.peak + plan.host > p.sum_limit) return;
    if (found &&
        (plan.peak > least->peak || (plan.peak == least->peak && plan.bound >= least->bound)))
      return;
    *least = plan;
    found = true;
  });
  return found;
}

LayerWords stack_recompute(const StackProblem& p, const StackPlan& plan) {
  return words_of(p, plan, &StackOption::recompute);
}

LayerWords stack_offload(const StackProblem& p, const StackPlan& plan) {
  return words_of(p, plan, &StackOption::offload);
}

std::vector<int> linked_choice(const StackProblem& p, const StackPlan& plan) {
  std::vector<int> choice(static_cast<size_t>(p.layers), plan.kept);
  std::fill_n(choice.begin(), plan.first, static_cast<int>(p.options->kept.size()) + plan.away);
  return choice;
}

LinkedProblem linked_problem(const StackProblem& p) {
  const StackOptions& list = *p.options;
  const auto n = static_cast<int>(list.kept.size() + list.away.size());
  LinkedProblem q;
  for (int i = 0; i < n; ++i) {
    const StackOption& o = option_of(list, i);
    q.options.push_back(o);
    q.alone.push_back(o.forward);
  }
  for (int a = 0; a < n; ++a)
    for (int b = 0; b < n; ++b)
      q.pairs.push_back({.forward = forward_behind(option_of(list, a), option_of(list, b)),
                         .after_sent = seconds_after_sent(option_of(list, a), option_of(list, b))});
  q.layers = p.layers;
  q.tail = p.tail;
  q.tail_back = p.tail_back;
  q.hidden = p.hidden;
  q.limit = p.limit;
  q.host_limit = std::min(p.host_limit, p.sum_limit < kNoLimit ? p.sum_limit - p.limit : kNoLimit);
  return q;
}

LayerWords linked_recompute(const StackOptions& options, const std::vector<int>& choice) {
  return words_of(options, choice, &StackOption::recompute);
}

LayerWords linked_offload(const StackOptions& options, const std::vector<int>& choice) {
  return words_of(options, choice, &StackOption::offload);
}

}  // namespace snug
