// Stochastic gradient descent with momentum, as torch.optim.SGD. Decay is added to the gradient
// (L2). The momentum buffer is the first gradient after the first update, without dampening.
// Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013).
#pragma once

#include "optim/checks.h"
#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

template <bool with_momentum, bool nesterov>
struct SgdRule {
  static constexpr int kStates = with_momentum ? 1 : 0, kFlops = with_momentum ? 9 : 5;
  float momentum, take;  // take: 1 - dampening

  explicit SgdRule(const OptimizerConfig& c)
      : momentum(static_cast<float>(c.sgd_momentum)),
        take(static_cast<float>(1.0 - c.sgd_dampening)) {}

  struct Step {
    float rate, decay, take;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    // The buffer of a first update is zero: taking all of the gradient makes it the gradient.
    return {static_cast<float>(s.learning_rate), static_cast<float>(s.weight_decay),
            s.first ? 1.0f : take};
  }
  SNUG_RULE float element(const Step& s, float p, float gradient, float* state) const {
    const float g = gradient + s.decay * p;
    if constexpr (!with_momentum) return p - s.rate * g;
    const float m = momentum * state[0] + s.take * g;
    state[0] = m;
    return p - s.rate * (nesterov ? g + momentum * m : m);
  }
};

struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr int kUses = kUsesMomentum;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() { return {}; }
  static OptimDefaults defaults() { return {}; }
  static std::vector<const char*> states(const OptimizerConfig& c) {
    if (c.sgd_momentum == 0) return {};
    return {"momentum_buffer"};
  }
  static void check(const OptimizerConfig& c) { check_momentum(c); }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    if (c.sgd_momentum == 0)
      run(SgdRule<false, false>(c));
    else if (c.sgd_nesterov)
      run(SgdRule<true, true>(c));
    else
      run(SgdRule<true, false>(c));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
