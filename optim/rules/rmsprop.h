// RMSprop as torch.optim.RMSprop: each element's gradient over the root of a mean of its squares.
// Decay is added to the gradient (L2).
//   v = alpha v + (1 - alpha) g^2        d = sqrt(v) + eps;  centered: sqrt(v - a^2) + eps
//   a += (1 - alpha)(g - a)  (centered: the mean of gradients, taken off before the root)
//   p -= lr g / d;  with momentum: b = momentum b + g / d, p -= lr b
// Tieleman and Hinton, lecture 6.5 of "Neural Networks for Machine Learning" (2012); Graves,
// "Generating sequences with recurrent neural networks" (2013) for the centered form.
#pragma once

#include "optim/checks.h"
#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

template <bool with_momentum, bool centered>
struct RmspropRule {
  static constexpr int kStates = 1 + (with_momentum ? 1 : 0) + (centered ? 1 : 0);
  static constexpr int kFlops = 10 + (with_momentum ? 2 : 0) + (centered ? 5 : 0);
  float alpha, one_minus_alpha, epsilon, momentum;

  struct Step {
    float rate, decay;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    return {static_cast<float>(s.learning_rate), static_cast<float>(s.weight_decay)};
  }
  SNUG_RULE float element(const Step& s, float p, float gradient, float* state) const {
    constexpr int kBuffer = 1, kMean = with_momentum ? 2 : 1;
    const float g = gradient + s.decay * p;
    const float v = alpha * state[0] + one_minus_alpha * (g * g);
    state[0] = v;
    float spread = v;
    if constexpr (centered) {
      const float a = state[kMean] + one_minus_alpha * (g - state[kMean]);
      state[kMean] = a;
      spread = v - a * a;
    }
    float move = g / (root(spread) + epsilon);
    if constexpr (with_momentum) {
      move = momentum * state[kBuffer] + move;
      state[kBuffer] = move;
    }
    return p - s.rate * move;
  }
};

struct Rmsprop {
  static constexpr const char* kName = "rmsprop";
  static constexpr int kUses = kUsesNone;
  static std::vector<const char*> aliases() { return {"rmsprop_bnb"}; }
  static std::vector<OptimSetting> settings() {
    return {{"alpha", 0.99, 0, 1, "decay of the mean of squares"},
            {"eps", 1e-8, 0, kUnbounded, "added to its root"},
            {"momentum", 0, 0, 1, "momentum of the step; 0: none, and no memory for it"},
            {"centered", 0, 0, 2, "1: by the variance, which takes one state more"}};
  }
  static OptimDefaults defaults() { return {}; }
  static std::vector<OptimState> states(const OptimizerConfig& c) {
    std::vector<OptimState> all = {{"square_avg", kSquares}};
    if (optim_arg(c, settings(), "momentum") > 0) all.emplace_back("momentum_buffer");
    if (optim_arg(c, settings(), "centered") != 0) all.emplace_back("grad_avg");
    return all;
  }
  static void check(const OptimizerConfig& c) {
    check_flag("centered", optim_arg(c, settings(), "centered"));
    if (optim_arg(c, settings(), "centered") != 0 && c.state != StateForm::f32)
      refuse("states in fp32 for centered, whose variance is a difference of two of them",
             setting("centered", 1) + ", states in " + std::string(to_string(c.state)),
             "optim=rmsprop, or leave centered out");
  }
  template <bool with_momentum, bool centered>
  static RmspropRule<with_momentum, centered> rule(const OptimizerConfig& c) {
    const double alpha = optim_arg(c, settings(), "alpha");
    return {static_cast<float>(alpha), static_cast<float>(1.0 - alpha),
            static_cast<float>(optim_arg(c, settings(), "eps")),
            static_cast<float>(optim_arg(c, settings(), "momentum"))};
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    const bool momentum = optim_arg(c, settings(), "momentum") > 0;
    const bool centered = optim_arg(c, settings(), "centered") != 0;
    if (momentum && centered)
      run(rule<true, true>(c));
    else if (momentum)
      run(rule<true, false>(c));
    else if (centered)
      run(rule<false, true>(c));
    else
      run(rule<false, false>(c));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
