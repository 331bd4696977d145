// Lion: every element moves by the learning rate, in the direction of a mean of gradients, so one
// state is kept where Adam keeps two:
//   p = p (1 - lr decay) - lr sign(beta1 m + (1 - beta1) g)      m = beta2 m + (1 - beta2) g
// Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2. The sign of
// zero is zero: what never has a gradient is only decayed. Its rate is a third of the others' unless
// set, and its second beta 0.99, as its authors advise.
#pragma once

#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct LionRule {
  static constexpr int kStates = 1, kFlops = 12;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;

  explicit LionRule(const OptimizerConfig& c)
      : beta1(static_cast<float>(c.adam_beta1)),
        one_minus_beta1(static_cast<float>(1.0 - c.adam_beta1)),
        beta2(static_cast<float>(c.adam_beta2)),
        one_minus_beta2(static_cast<float>(1.0 - c.adam_beta2)) {}

  struct Step {
    float rate, shrink;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    return {static_cast<float>(s.learning_rate),
            static_cast<float>(s.learning_rate * s.weight_decay)};
  }
  SNUG_RULE float element(const Step& s, float p, float g, float* state) const {
    const float u = beta1 * state[0] + one_minus_beta1 * g;
    const float sign = (u > 0.0f ? 1.0f : 0.0f) - (u < 0.0f ? 1.0f : 0.0f);
    state[0] = beta2 * state[0] + one_minus_beta2 * g;
    return (p - s.shrink * p) - s.rate * sign;
  }
};

struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr int kUses = kUsesBetas;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() { return {}; }
  static OptimDefaults defaults() { return {2e-4, 0.99}; }
  static std::vector<OptimState> states(const OptimizerConfig&) { return {"exp_avg"}; }
  static void check(const OptimizerConfig&) {}
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    run(LionRule(c));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
