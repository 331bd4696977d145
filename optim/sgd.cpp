// Stochastic gradient descent with momentum, as torch.optim.SGD. Decay is added to the gradient
// (L2). The momentum buffer is the first gradient after the first update, without dampening.
#include "optim/checks.h"
#include "optim/elementwise.h"

namespace snug {
namespace {

class Sgd final : public ElementwiseOptimizer {
 public:
  explicit Sgd(const OptimizerConfig& c)
      : ElementwiseOptimizer(c, momentum_names(c), "sgd_update", c.sgd_momentum == 0 ? 5 : 9) {}

 protected:
  void update_block(const ElementStep& s, const ElementBlock& b) const override {
    if (config().sgd_momentum == 0)
      plain(s, b);
    else if (config().sgd_nesterov)
      with_momentum<true>(s, b);
    else
      with_momentum<false>(s, b);
  }

 private:
  static std::vector<const char*> momentum_names(const OptimizerConfig& c) {
    if (c.sgd_momentum == 0) return {};
    return {"momentum_buffer"};
  }

  static void plain(const ElementStep& s, const ElementBlock& b) {
    const auto rate = static_cast<float>(s.learning_rate);
    const auto decay = static_cast<float>(s.weight_decay);
    const float factor = s.gradient_factor;
    float* __restrict parameter = b.parameter;
    const float* __restrict gradient = b.gradient;
    for (int64_t i = 0; i < b.n; ++i) {
      const float p = parameter[i];
      parameter[i] = p - rate * (gradient[i] * factor + decay * p);
    }
  }

  template <bool nesterov>
  void with_momentum(const ElementStep& s, const ElementBlock& b) const {
    const auto rate = static_cast<float>(s.learning_rate);
    const auto decay = static_cast<float>(s.weight_decay);
    const auto momentum = static_cast<float>(config().sgd_momentum);
    // The buffer of a first update is zero: taking all of the gradient makes it the gradient.
    const auto take = s.first ? 1.0f : static_cast<float>(1.0 - config().sgd_dampening);
    const float factor = s.gradient_factor;
    float* __restrict parameter = b.parameter;
    const float* __restrict gradient = b.gradient;
    float* __restrict buffer = b.states[0];
    for (int64_t i = 0; i < b.n; ++i) {
      const float p = parameter[i];
      const float g = gradient[i] * factor + decay * p;
      const float m = momentum * buffer[i] + take * g;
      buffer[i] = m;
      parameter[i] = p - rate * (nesterov ? g + momentum * m : m);
    }
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& c) {
  check_base_settings(c);
  refuse_adam_settings(c);
  check_at_least_zero("sgd_momentum", c.sgd_momentum, "sgd_momentum=0.9");
  check_finite("sgd_dampening", c.sgd_dampening, "sgd_dampening=0");
  if (c.sgd_nesterov && (c.sgd_momentum <= 0 || c.sgd_dampening != 0))
    refuse(
        "sgd_nesterov with a momentum above 0 and zero dampening",
        setting("sgd_momentum", c.sgd_momentum) + ", " + setting("sgd_dampening", c.sgd_dampening),
        "sgd_momentum=0.9 sgd_dampening=0, or sgd_nesterov=false");
  if (c.sgd_momentum == 0 && c.sgd_dampening != 0)
    refuse("sgd_dampening together with sgd_momentum: without momentum it does nothing",
           setting("sgd_dampening", c.sgd_dampening) + ", sgd_momentum: 0",
           "sgd_momentum=0.9, or leave sgd_dampening out");
  return std::make_unique<Sgd>(c);
}

}  // namespace snug
