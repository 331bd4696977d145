// A rule: one elementwise optimizer in one header of optim/rules, read by the loops of the CPU and
// by the kernels of update.cu, so that both have one arithmetic. The build collects the headers of
// that folder; a file name.h declares `struct Name`, its words without underscores in capitals:
//
//   struct Lion {
//     static constexpr const char* kName = "lion";           // of optim; the op is lion_update
//     static constexpr int kUses = kUsesBetas;               // keys of the configuration
//     static std::vector<const char*> aliases();             // other names of the same arithmetic
//     static std::vector<OptimSetting> settings();           // of optim_args
//     static OptimDefaults defaults();
//     static std::vector<OptimState> states(const OptimizerConfig&);
//     static void check(const OptimizerConfig&);             // beyond ranges
//     template <class F> static void with_rule(const OptimizerConfig&, F&& run);  // run(a rule)
//   };
//
// A rule is plain values that its constants are made of, and
//   kStates, kFlops     states of an element; flops of one, for reports
//   struct Step         the numbers of one step, those that every element needs alike
//   Step step(s)        of them; scalars are combined in double and rounded once
//   element(...)        the parameter's new value; `g` is unscaled and clipped, `state` is zero
//                       before the first update. No branch on data, no other element. Decay apart
//                       from the gradient is p - (lr decay) p: the rounding of a factor
//                       1 - lr decay would add up from step to step.
//   state               a squares' state is never below 0; codes of it have no sign (OptimState)
//   prepare(StepState)  optional, on the host before a step: the bias corrections
//   measured(...)       optional, with the arguments of element(): the number whose norm, and that of
//                       the parameter, step() finds in ElementStep. Of a step without them; it writes
//                       no state. Such a rule is served whole parameters
//   kFactored, epsilon  optional, of a rule with one state that measures: of matrices the state is kept
//                       as means of rows and columns (optim/factored.h), and element() finds 1 over its
//                       root in its place, where ElementStep::factored says so
//   note(config)        optional, of that struct too: what to tell of a configuration (OptimFacts::note)
//   kKeepsOthers        optional, of the struct beside kName: with OptimizerConfig::moves set, with_rule
//                       gives the rule that goes to the weights that are kept, or back, in place of a
//                       step (optim/schedule_free_rule.h)
//   kReach              optional, there too: matrix or blocks, of an optimizer whose own class finds the
//                       direction of some spans' steps (optim/directed.h). With OptimizerConfig::along set
//                       with_rule gives the rule that takes them (optim/along_rule.h)
// Functions of a rule that kernels call are marked SNUG_RULE.
#pragma once

#include <cmath>
#include <vector>

#include "optim/elementwise.h"
#include "optim/settings.h"

#ifdef __CUDACC__
#define SNUG_RULE __host__ __device__ __forceinline__
// Both compilers' copies of a rule fit in one program.
#define SNUG_RULE_SIDE by_nvcc
#else
#define SNUG_RULE [[gnu::always_inline]] inline
#define SNUG_RULE_SIDE by_the_host
#endif

namespace snug {
inline namespace SNUG_RULE_SIDE {

template <class Rule>
inline constexpr bool kMeasures = requires {
  &Rule::measured;
};
template <class Rule>
inline constexpr bool kFactors = requires {
  Rule::kFactored;
};
template <class Rule>
inline constexpr OptimReach kReach = kFactors<Rule>    ? OptimReach::factored
                                     : kMeasures<Rule> ? OptimReach::parameter
                                                       : OptimReach::element;

template <class Entry>
inline constexpr bool kDirects = requires {
  Entry::kReach;
};
template <class Entry>
inline constexpr bool kKeepsOthers = requires {
  Entry::kKeepsOthers;
};

// What a span's group does to rate and decay. Behind the groups of the table come two for each
// OptimGroup: of parameters that the table decays, and of those that it does not.
struct GroupNumbers {
  struct One {
    double rate, weight_decay;
  };
  One of[kMaxGroups + 2 * kMostOptimGroups];
  bool directions;  // gradients are directions (OptimizerConfig::along)
};
inline constexpr int kAllGroups = kMaxGroups + 2 * kMostOptimGroups;

inline GroupNumbers group_numbers(const OptimizerConfig& c) {
  GroupNumbers n{};
  for (GroupNumbers::One& one : n.of) one.rate = 1;
  n.of[kGroupDecay].weight_decay = c.weight_decay;
  n.directions = c.along;
  for (size_t k = 0; k < c.groups.size(); ++k) {
    const OptimGroup& g = c.groups[k];
    GroupNumbers::One* two = n.of + kMaxGroups + 2 * k;
    two[0] = {g.rate, g.weight_decay < 0 ? c.weight_decay : g.weight_decay};
    two[1] = {g.rate, g.weight_decay < 0 ? 0 : g.weight_decay};
  }
  return n;
}
inline int number_of_group(const OptimizerConfig& c, const StateSpan& span) {
  const auto p = static_cast<size_t>(span.param);
  const int own = span.param >= 0 && p < c.group_of.size() ? c.group_of[p] : 0;
  if (own == 0) return span.group;
  return kMaxGroups + 2 * (own - 1) + (span.group == kGroupDecay ? 0 : 1);
}

SNUG_RULE ElementStep element_step(const StepState& s, const GroupNumbers& groups, int group) {
  ElementStep e;
  e.gradient_factor =
      groups.directions ? 1.0f : static_cast<float>(double{s.clip_factor} / double{s.loss_scale});
  const int of_table = group < kMaxGroups ? group : (group - kMaxGroups) % 2;
  e.learning_rate = s.learning_rate[of_table] * groups.of[group].rate;
  e.weight_decay = groups.of[group].weight_decay;
  e.bias_correction1 = s.bias_correction1;
  e.bias_correction2 = s.bias_correction2;
  e.updates = s.updates;
  e.first = s.updates == 0;
  e.parameter_norm = e.measured_norm = 0;
  e.elements = 0;
  e.factored = false;
  return e;
}

SNUG_RULE float root(float x) {  // IEEE on every place
  return ::sqrtf(x);
}

// 1 - beta^t of the next update, rounded to f32 where the state keeps it.
inline void prepare_bias_corrections(StepState& state, double beta1, double beta2) {
  const auto t = static_cast<double>(state.updates + 1);
  state.bias_correction1 = static_cast<float>(1.0 - std::pow(beta1, t));
  state.bias_correction2 = static_cast<float>(1.0 - std::pow(beta2, t));
}

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
