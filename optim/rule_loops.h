// The loops of the CPU over a rule (optim/rule.h), over floats.
#pragma once

#include "optim/rule.h"

namespace snug {

// States are copied to locals, so that what a rule writes is plain values and the compiler makes
// vectors of them.
template <class Rule>
[[gnu::always_inline]] inline void run_rule(const Rule& rule, const typename Rule::Step& step,
                                            float factor, const ElementBlock& b) {
  float* __restrict parameter = b.parameter;
  const float* __restrict gradient = b.gradient;
  float* __restrict s0 = b.states[0];
  float* __restrict s1 = b.states[1];
  float* __restrict s2 = b.states[2];
  float* __restrict s3 = b.states[3];
#pragma GCC ivdep  // the arrays do not overlap: five are more than a compiler asks of pointers
  for (int64_t i = 0; i < b.n; ++i) {
    float state[kMaxStates];
    if constexpr (Rule::kStates > 0) state[0] = s0[i];
    if constexpr (Rule::kStates > 1) state[1] = s1[i];
    if constexpr (Rule::kStates > 2) state[2] = s2[i];
    if constexpr (Rule::kStates > 3) state[3] = s3[i];
    parameter[i] = rule.element(step, parameter[i], gradient[i] * factor, state);
    if constexpr (Rule::kStates > 0) s0[i] = state[0];
    if constexpr (Rule::kStates > 1) s1[i] = state[1];
    if constexpr (Rule::kStates > 2) s2[i] = state[2];
    if constexpr (Rule::kStates > 3) s3[i] = state[3];
  }
}

template <class Rule>
void measure_rule(const Rule& rule, const ElementStep& numbers, const ElementBlock& b,
                  NormLanes& lanes) {
  const typename Rule::Step step = rule.step(numbers);
  for (int64_t i = 0; i < b.n; ++i) {
    float state[kMaxStates];
    for (int k = 0; k < Rule::kStates; ++k) state[k] = b.states[static_cast<size_t>(k)][i];
    const float p = b.parameter[i];
    const float x = rule.measured(step, p, b.gradient[i] * numbers.gradient_factor, state);
    NormSums& lane = lanes.of[i % kNormLanes];
    lane.parameter += double{p} * double{p};
    lane.measured += double{x} * double{x};
  }
}

}  // namespace snug
