// What Adam and AdamW share: moments, bias corrections, and the step
//   m += (1 - beta1)(g - m)      v = beta2 v + (1 - beta2) g^2
//   p -= (lr / bc1) m / (sqrt(v) / sqrt(bc2) + epsilon),    bc = 1 - beta^t
// They differ in where weight decay enters.
#pragma once

#include <cmath>

#include "optim/elementwise.h"

namespace snug {

class AdamFamily : public ElementwiseOptimizer {
 public:
  void prepare_step(StepState& state) const final {
    const auto t = static_cast<double>(state.updates + 1);
    state.bias_correction1 = static_cast<float>(1.0 - std::pow(config().adam_beta1, t));
    state.bias_correction2 = static_cast<float>(1.0 - std::pow(config().adam_beta2, t));
  }

 protected:
  AdamFamily(const OptimizerConfig& c, const char* op_name)
      : ElementwiseOptimizer(c, {"exp_avg", "exp_avg_sq"}, op_name, 15) {}

  // keep: factor of the parameter before the step; l2: decay added to the gradient.
  void adam_block(const ElementStep& s, const ElementBlock& b, float keep, float l2) const {
    const auto one_minus_beta1 = static_cast<float>(1.0 - config().adam_beta1);
    const auto beta2 = static_cast<float>(config().adam_beta2);
    const auto one_minus_beta2 = static_cast<float>(1.0 - config().adam_beta2);
    const auto epsilon = static_cast<float>(config().adam_epsilon);
    const auto rate = static_cast<float>(s.learning_rate / s.bias_correction1);
    const auto scale = static_cast<float>(1.0 / std::sqrt(s.bias_correction2));
    const float factor = s.gradient_factor;
    float* __restrict parameter = b.parameter;
    const float* __restrict gradient = b.gradient;
    float* __restrict exp_avg = b.states[0];
    float* __restrict exp_avg_sq = b.states[1];
    for (int64_t i = 0; i < b.n; ++i) {
      float p = parameter[i];
      const float g = gradient[i] * factor + l2 * p;
      p *= keep;
      const float m = exp_avg[i] + one_minus_beta1 * (g - exp_avg[i]);
      const float v = beta2 * exp_avg_sq[i] + one_minus_beta2 * (g * g);
      exp_avg[i] = m;
      exp_avg_sq[i] = v;
      parameter[i] = p - rate * (m / (std::sqrt(v) * scale + epsilon));
    }
  }
};

}  // namespace snug
