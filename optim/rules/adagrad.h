// Adagrad as torch.optim.Adagrad: the gradient over the root of the sum of all its squares, so rates
// only fall. Decay is added to the gradient (L2).
//   s += g^2      p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps)
// Duchi, Hazan and Singer, "Adaptive subgradient methods" (2011).
#pragma once

#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct AdagradRule {
  static constexpr int kStates = 1, kFlops = 8;
  double lr_decay;
  float initial, epsilon;

  struct Step {
    float rate, decay, start;  // start: what the sum begins with, at the first update
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    const double slower = 1.0 + static_cast<double>(s.updates) * lr_decay;
    return {static_cast<float>(s.learning_rate / slower), static_cast<float>(s.weight_decay),
            s.first ? initial : 0.0f};
  }
  SNUG_RULE float element(const Step& s, float p, float gradient, float* state) const {
    const float g = gradient + s.decay * p;
    const float sum = state[0] + s.start + g * g;
    state[0] = sum;
    return p - s.rate * (g / (root(sum) + epsilon));
  }
};

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr int kUses = kUsesNone;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() {
    return {{"lr_decay", 0, 0, kUnbounded, "the rate of update t is divided by 1 + (t - 1) of it"},
            {"eps", 1e-10, 0, kUnbounded, "added to the root of the sum"},
            {"initial_accumulator_value", 0, 0, kUnbounded, "what the sums begin with"}};
  }
  static OptimDefaults defaults() { return {}; }
  static std::vector<OptimState> states(const OptimizerConfig&) { return {{"sum", kSquares}}; }
  static void check(const OptimizerConfig&) {}
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    run(AdagradRule{optim_arg(c, settings(), "lr_decay"),
                    static_cast<float>(optim_arg(c, settings(), "initial_accumulator_value")),
                    static_cast<float>(optim_arg(c, settings(), "eps"))});
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
