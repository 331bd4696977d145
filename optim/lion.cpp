// Lion: every element moves by the learning rate, in the direction of a mean of gradients, so one
// state is kept where Adam keeps two:
//   p = p (1 - lr decay) - lr sign(beta1 m + (1 - beta1) g)      m = beta2 m + (1 - beta2) g
// Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2. The sign of
// zero is zero: what never has a gradient is only decayed.
#include "optim/checks.h"
#include "optim/elementwise.h"

namespace snug {
namespace {

class Lion final : public ElementwiseOptimizer {
 public:
  explicit Lion(const OptimizerConfig& c)
      : ElementwiseOptimizer(c, {"exp_avg"}, "lion_update", 11) {}

 protected:
  void update_block(const ElementStep& s, const ElementBlock& b) const override {
    const auto beta1 = static_cast<float>(config().adam_beta1);
    const auto one_minus_beta1 = static_cast<float>(1.0 - config().adam_beta1);
    const auto beta2 = static_cast<float>(config().adam_beta2);
    const auto one_minus_beta2 = static_cast<float>(1.0 - config().adam_beta2);
    const auto rate = static_cast<float>(s.learning_rate);
    const auto keep = static_cast<float>(1.0 - s.learning_rate * s.weight_decay);
    const float factor = s.gradient_factor;
    float* __restrict parameter = b.parameter;
    const float* __restrict gradient = b.gradient;
    float* __restrict exp_avg = b.states[0];
    for (int64_t i = 0; i < b.n; ++i) {
      const float g = gradient[i] * factor;
      const float u = beta1 * exp_avg[i] + one_minus_beta1 * g;
      const float sign = (u > 0.0f ? 1.0f : 0.0f) - (u < 0.0f ? 1.0f : 0.0f);
      exp_avg[i] = beta2 * exp_avg[i] + one_minus_beta2 * g;
      parameter[i] = parameter[i] * keep - rate * sign;
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& c) {
  check_base_settings(c);
  check_betas(c, "0.99");
  refuse_epsilon(c);
  refuse_sgd_settings(c);
  return std::make_unique<Lion>(c);
}

}  // namespace snug
