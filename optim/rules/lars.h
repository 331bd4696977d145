// LARS: the gradient with its decay, times a ratio of the norms of parameter and gradient, tensor by
// tensor, and then the momentum of sgd:
//   d = (g + decay p) trust_coefficient |p| / (|g| + decay |p| + eps)
//   b = momentum b + (1 - dampening) d      p -= lr b
// What is not decayed is not scaled either (d = g), nor what has a norm of 0 (d = g, not decayed).
// You et al., "Large Batch Training of Convolutional Networks" (2017), as torch_optimizer.LARS has it; its
// momentum is sgd_momentum. Without weight_decay it is sgd. Of tensors that models join see lamb.h.
#pragma once

#include "optim/checks.h"
#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

template <bool with_momentum, bool nesterov>
struct LarsRule {
  static constexpr int kStates = with_momentum ? 1 : 0, kFlops = with_momentum ? 14 : 10;
  double trust_coefficient, epsilon;
  float momentum, take;  // take: 1 - dampening

  LarsRule(const OptimizerConfig& c, const std::vector<OptimSetting>& settings)
      : trust_coefficient(optim_arg(c, settings, "trust_coefficient")),
        epsilon(optim_arg(c, settings, "eps")),
        momentum(static_cast<float>(c.sgd_momentum)),
        take(static_cast<float>(1.0 - c.sgd_dampening)) {}

  struct Step {
    float rate, decay, scale, take;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    const double p = s.parameter_norm, g = s.measured_norm;
    const bool scales = s.weight_decay != 0 && p != 0 && g != 0;
    const double ratio = p / (g + p * s.weight_decay + epsilon) * trust_coefficient;
    // The buffer of a first update is zero: taking all of the gradient makes it the gradient.
    return {static_cast<float>(s.learning_rate), scales ? static_cast<float>(s.weight_decay) : 0.0f,
            scales ? static_cast<float>(ratio) : 1.0f, s.first ? 1.0f : take};
  }
  SNUG_RULE float measured(const Step&, float, float g, const float*) const { return g; }
  SNUG_RULE float element(const Step& s, float p, float gradient, float* state) const {
    const float d = (gradient + s.decay * p) * s.scale;
    if constexpr (!with_momentum) return p - s.rate * d;
    const float m = momentum * state[0] + s.take * d;
    state[0] = m;
    return p - s.rate * (nesterov ? d + momentum * m : m);
  }
};

struct Lars {
  static constexpr const char* kName = "lars";
  static constexpr int kUses = kUsesMomentum;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() {
    return {{"trust_coefficient", 0.01, 0, kUnbounded, "a step's share of the parameter's norm"},
            {"eps", 1e-8, 0, kUnbounded, "added to the gradient's norm"}};
  }
  static OptimDefaults defaults() { return {1e-2, 0}; }
  static std::vector<OptimState> states(const OptimizerConfig& c) {
    if (c.sgd_momentum == 0) return {};
    return {"momentum_buffer"};
  }
  static void check(const OptimizerConfig& c) { check_momentum(c); }
  static std::string note(const OptimizerConfig& c) {
    for (const OptimGroup& g : c.groups)
      if (g.weight_decay > 0) return {};
    if (c.weight_decay > 0) return {};
    return "lars scales what is decayed alone, and weight_decay is 0: this is sgd; "
           "weight_decay=0.1 "
           "makes a difference";
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    if (c.sgd_momentum == 0)
      run(LarsRule<false, false>(c, settings()));
    else if (c.sgd_nesterov)
      run(LarsRule<true, true>(c, settings()));
    else
      run(LarsRule<true, false>(c, settings()));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
