#include "tools/trainer/stack_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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

std::string text_of(const StackProblem& p, const StackPlan& plan, std::string StackOption::*words) {
  std::vector<std::string> layers(static_cast<size_t>(p.layers),
                                  p.options->kept[static_cast<size_t>(plan.kept)].*words);
  std::fill_n(layers.begin(), plan.first, p.options->away[static_cast<size_t>(plan.away)].*words);
  return recompute_text(layers);
}

const StackOption& option_of(const StackOptions& options, int i) {
  const auto at = static_cast<size_t>(i), kept = options.kept.size();
  return at < kept ? options.kept[at] : options.away[at - kept];
}

std::string text_of(const StackOptions& options, const std::vector<int>& choice,
                    std::string StackOption::*words) {
  std::vector<std::string> layers;
  for (const int i : choice) layers.push_back(option_of(options, i).*words);
  return recompute_text(layers);
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

std::vector<StackPlan> stack_plans(const StackProblem& p, double below) {
  std::vector<StackPlan> plans;
  for_plans(p, [&](const StackPlan& plan) {
    if (plan.bound < below && plan.peak <= p.limit && plan.host <= p.host_limit &&
        plan.peak + plan.host <= p.sum_limit)
      plans.push_back(plan);
  });
  std::stable_sort(plans.begin(), plans.end(), [](const StackPlan& a, const StackPlan& b) {
    return a.bound != b.bound ? a.bound < b.bound : a.host < b.host;
  });
  return plans;
}

bool least_stack(const StackProblem& p, StackPlan* least) {
  bool found = false;
  for_plans(p, [&](const StackPlan& plan) {
    if (plan.host > p.host_limit) return;
    if (found &&
        (plan.peak > least->peak || (plan.peak == least->peak && plan.bound >= least->bound)))
      return;
    *least = plan;
    found = true;
  });
  return found;
}

std::string stack_recompute(const StackProblem& p, const StackPlan& plan) {
  return text_of(p, plan, &StackOption::recompute);
}

std::string stack_offload(const StackProblem& p, const StackPlan& plan) {
  return text_of(p, plan, &StackOption::offload);
}

LinkedProblem linked_problem(const StackProblem& p) {
  const StackOptions& list = *p.options;
  const auto n = static_cast<int>(list.kept.size() + list.away.size());
  LinkedProblem q;
  for (int i = 0; i < n; ++i) {
    const StackOption& o = option_of(list, i);
    q.options.push_back({.saved = o.saved,
                         .backward = o.backward,
                         .coming = o.coming,
                         .host = o.host,
                         .forward_seconds = o.forward_seconds,
                         .backward_seconds = o.backward_seconds,
                         .to_host = o.to_host,
                         .to_device = o.to_device,
                         .before_sent = std::min(o.before_sent, o.forward_seconds),
                         .after_arrival = std::min(o.after_arrival, o.backward_seconds)});
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

std::string linked_recompute(const StackOptions& options, const std::vector<int>& choice) {
  return text_of(options, choice, &StackOption::recompute);
}

std::string linked_offload(const StackOptions& options, const std::vector<int>& choice) {
  return text_of(options, choice, &StackOption::offload);
}

std::string layers_in_brief(const std::string& words) {
  constexpr auto kMost = 4;
  const auto groups = 1 + std::count(words.begin(), words.end(), ',');
  if (groups <= kMost) return words;
  std::set<std::string> ways;
  for (size_t at = 0; (at = words.find(": ", at)) != std::string::npos;) {
    at += 2;
    ways.insert(words.substr(at, words.find(',', at) - at));
  }
  return fmt::format("by layer ({} in {} groups)", fmt::join(ways, ", "), groups);
}

}  // namespace snug
