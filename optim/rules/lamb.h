// LAMB: the step of Adam, times the ratio of the norms of parameter and step, tensor by tensor:
//   m = beta1 m + (1 - beta1) g      v = beta2 v + (1 - beta2) g^2
//   u = m / (sqrt(v) + eps) + decay p        r = min(|p|, clamp_value) / |u|, or 1 if either is 0
//   p -= lr r u,  with debias  lr r u sqrt(1 - beta2^t) / (1 - beta1^t)
// You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020), as
// torch_optimizer.Lamb has it. A tensor is one of the parameter table, where queries, keys and values, or
// gate and up, of some models lie in one and have one norm.
#pragma once

#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct LambRule {
  static constexpr int kStates = 2, kFlops = 24;
  double beta1, beta2, clamp;
  float beta1_f, one_minus_beta1, beta2_f, one_minus_beta2, epsilon;
  bool debias;

  LambRule(const OptimizerConfig& c, const std::vector<OptimSetting>& settings)
      : beta1(c.adam_beta1),
        beta2(c.adam_beta2),
        clamp(optim_arg(c, settings, "clamp_value")),
        beta1_f(static_cast<float>(c.adam_beta1)),
        one_minus_beta1(static_cast<float>(1.0 - c.adam_beta1)),
        beta2_f(static_cast<float>(c.adam_beta2)),
        one_minus_beta2(static_cast<float>(1.0 - c.adam_beta2)),
        epsilon(static_cast<float>(optim_arg(c, settings, "eps"))),
        debias(optim_arg(c, settings, "debias") != 0) {}

  void prepare(StepState& state) const { prepare_bias_corrections(state, beta1, beta2); }

  struct Step {
    float rate, decay;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    const double norm = s.parameter_norm < clamp ? s.parameter_norm : clamp;
    const double trust = norm == 0 || s.measured_norm == 0 ? 1.0 : norm / s.measured_norm;
    const double bias = debias ? ::sqrt(s.bias_correction2) / s.bias_correction1 : 1.0;
    return {static_cast<float>(s.learning_rate * bias * trust), static_cast<float>(s.weight_decay)};
  }
  SNUG_RULE float measured(const Step& s, float p, float g, const float* state) const {
    const float m = beta1_f * state[0] + one_minus_beta1 * g;
    const float v = beta2_f * state[1] + one_minus_beta2 * (g * g);
    return m / (root(v) + epsilon) + s.decay * p;
  }
  SNUG_RULE float element(const Step& s, float p, float g, float* state) const {
    const float u = measured(s, p, g, state);
    state[0] = beta1_f * state[0] + one_minus_beta1 * g;
    state[1] = beta2_f * state[1] + one_minus_beta2 * (g * g);
    return p - s.rate * u;
  }
};

struct Lamb {
  static constexpr const char* kName = "lamb";
  static constexpr int kUses = kUsesBetas;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() {
    return {{"eps", 1e-6, 0, kUnbounded, "added to the root of the mean of squares"},
            {"clamp_value", 10, 0, kUnbounded, "what a parameter's norm counts at most"},
            {"debias", 0, 0, 2, "1: with the bias corrections of Adam"}};
  }
  static OptimDefaults defaults() { return {1e-3, 0}; }
  static std::vector<OptimState> states(const OptimizerConfig&) {
    return {"exp_avg", {"exp_avg_sq", kSquares}};
  }
  static void check(const OptimizerConfig&) {}
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    run(LambRule(c, settings()));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
