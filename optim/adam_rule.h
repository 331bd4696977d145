// What Adam and AdamW share: moments, bias corrections, and the step
//   m += (1 - beta1)(g - m)      v = beta2 v + (1 - beta2) g^2
//   p -= (lr / bc1) m / (sqrt(v) / sqrt(bc2) + epsilon),    bc = 1 - beta^t
// They differ in where weight decay enters.
#pragma once

#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct AdamRule {
  static constexpr int kStates = 2, kFlops = 16;
  double beta1, beta2;
  float one_minus_beta1, beta2_f, one_minus_beta2, epsilon;
  bool decoupled;  // AdamW

  AdamRule(const OptimizerConfig& c, bool apart)
      : beta1(c.adam_beta1),
        beta2(c.adam_beta2),
        one_minus_beta1(static_cast<float>(1.0 - c.adam_beta1)),
        beta2_f(static_cast<float>(c.adam_beta2)),
        one_minus_beta2(static_cast<float>(1.0 - c.adam_beta2)),
        epsilon(static_cast<float>(c.adam_epsilon)),
        decoupled(apart) {}

  void prepare(StepState& state) const { prepare_bias_corrections(state, beta1, beta2); }

  struct Step {
    float rate, scale, shrink, l2;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    return {static_cast<float>(s.learning_rate / s.bias_correction1),
            static_cast<float>(1.0 / ::sqrt(s.bias_correction2)),
            decoupled ? static_cast<float>(s.learning_rate * s.weight_decay) : 0.0f,
            decoupled ? 0.0f : static_cast<float>(s.weight_decay)};
  }
  SNUG_RULE float element(const Step& s, float p, float gradient, float* state) const {
    const float g = gradient + s.l2 * p;
    const float m = state[0] + one_minus_beta1 * (g - state[0]);
    const float v = beta2_f * state[1] + one_minus_beta2 * (g * g);
    state[0] = m;
    state[1] = v;
    return (p - s.shrink * p) - s.rate * (m / (root(v) * s.scale + epsilon));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
