// AdEMAMix: AdamW with a second, slow mean of gradients, which keeps what they said long ago.
//   m1 = beta1 m1 + (1 - beta1) g      m2 = beta3 m2 + (1 - beta3) g
//   v = beta2 v + (1 - beta2) g^2      p -= lr ((m1 / bc1 + alpha m2) / (sqrt(v / bc2) + eps) + decay p)
// Until update t_alpha alpha grows to its value in a line, and until t_beta3 beta3 from beta1 so that
// the half-life of its mean does.
// Pagliardini, Ablin and Grangier, "The AdEMAMix optimizer: better, faster, older" (2024);
// bitsandbytes.optim.AdEMAMix.
#pragma once

#include "optim/checks.h"
#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct AdemamixRule {
  static constexpr int kStates = 3, kFlops = 22;
  double beta1, beta2, beta3, alpha, t_alpha, t_beta3;
  float beta1_f, one_minus_beta1, beta2_f, one_minus_beta2, epsilon;

  void prepare(StepState& state) const { prepare_bias_corrections(state, beta1, beta2); }

  struct Step {
    float shrink, rate, correct1, correct2, slow, beta3, one_minus_beta3;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    const auto t = static_cast<double>(s.updates + 1);
    const double slow = t_alpha > t ? t * alpha / t_alpha : alpha;
    double b3 = beta3;
    if (t_beta3 > t) {
      const double share = t / t_beta3, log1 = ::log(beta1), log3 = ::log(beta3);
      const double warm = ::exp(log1 * log3 / ((1.0 - share) * log3 + share * log1));
      b3 = warm < beta3 ? warm : beta3;
    }
    return {static_cast<float>(s.learning_rate * s.weight_decay),
            static_cast<float>(s.learning_rate),
            static_cast<float>(1.0 / s.bias_correction1),
            static_cast<float>(1.0 / ::sqrt(s.bias_correction2)),
            static_cast<float>(slow),
            static_cast<float>(b3),
            static_cast<float>(1.0 - b3)};
  }
  SNUG_RULE float element(const Step& s, float p, float g, float* state) const {
    const float m1 = beta1_f * state[0] + one_minus_beta1 * g;
    const float m2 = s.beta3 * state[1] + s.one_minus_beta3 * g;
    const float v = beta2_f * state[2] + one_minus_beta2 * (g * g);
    state[0] = m1;
    state[1] = m2;
    state[2] = v;
    const float u = (m1 * s.correct1 + s.slow * m2) / (root(v) * s.correct2 + epsilon);
    return (p - s.shrink * p) - s.rate * u;
  }
};

struct Ademamix {
  static constexpr const char* kName = "ademamix";
  static constexpr int kUses = kUsesBetas | kUsesEpsilon;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() {
    return {{"beta3", 0.9999, 0, 1, "decay of the slow mean"},
            {"alpha", 5, 0, kUnbounded, "its weight beside the fast one"},
            {"t_alpha", 0, 0, kUnbounded, "updates over which alpha grows; 0: none"},
            {"t_beta3", 0, 0, kUnbounded, "updates over which beta3 grows from beta1; 0: none"}};
  }
  static OptimDefaults defaults() { return {}; }
  static std::vector<OptimState> states(const OptimizerConfig&) {
    return {"exp_avg", "exp_avg_slow", {"exp_avg_sq", kSquares}};
  }
  static void check(const OptimizerConfig& c) {
    if (optim_arg(c, settings(), "t_beta3") > 0 &&
        (c.adam_beta1 == 0 || optim_arg(c, settings(), "beta3") == 0))
      refuse("adam_beta1 and beta3 above 0 for t_beta3, which goes between their half-lives",
             setting("adam_beta1", c.adam_beta1) + ", " +
                 setting("beta3", optim_arg(c, settings(), "beta3")),
             "leave t_beta3 out");
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    run(AdemamixRule{c.adam_beta1, c.adam_beta2, optim_arg(c, settings(), "beta3"),
                     optim_arg(c, settings(), "alpha"), optim_arg(c, settings(), "t_alpha"),
                     optim_arg(c, settings(), "t_beta3"), static_cast<float>(c.adam_beta1),
                     static_cast<float>(1.0 - c.adam_beta1), static_cast<float>(c.adam_beta2),
                     static_cast<float>(1.0 - c.adam_beta2), static_cast<float>(c.adam_epsilon)});
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
