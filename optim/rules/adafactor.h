// Adafactor: the gradient over the root of a mean of its squares, of which a matrix keeps the means of
// its rows r and columns c alone, in place of one number an element:
//   b = 1 - t^decay_rate       s = g^2 + eps1
//   matrices  r = b r + (1 - b) mean_j s      c = b c + (1 - b) mean_i s      v = r c / mean(r)
//   others    v = b v + (1 - b) s
//   u = g / sqrt(v), over max(1, rms(u) / clip_threshold)
//   p -= lr (u + decay p),  with scale_parameter  lr max(eps2, rms(p)) in place of lr
// Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (2018), as
// transformers.Adafactor has it, with what its Trainer sets: no relative_step, and scale_parameter
// unless asked for. There is no first moment (beta1).
#pragma once

#include "optim/checks.h"
#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct AdafactorRule {
  static constexpr int kStates = 1, kFlops = 20;
  // Of matrices element() finds 1 / sqrt(v) where it has the state of others, and leaves it.
  static constexpr bool kFactored = true;
  double decay_rate, clip, least_scale;
  float epsilon;
  bool scales;

  AdafactorRule(const OptimizerConfig& c, const std::vector<OptimSetting>& settings)
      : decay_rate(optim_arg(c, settings, "decay_rate")),
        clip(optim_arg(c, settings, "clip_threshold")),
        least_scale(optim_arg(c, settings, "eps2")),
        epsilon(static_cast<float>(optim_arg(c, settings, "eps1"))),
        scales(optim_arg(c, settings, "scale_parameter") != 0) {}

  // 1 - b, where Adam has a bias correction.
  void prepare(StepState& state) const {
    const auto t = static_cast<double>(state.updates + 1);
    state.bias_correction1 = static_cast<float>(std::pow(t, decay_rate));
    state.bias_correction2 = 1.0f;
  }

  struct Step {
    float keep, take, epsilon, rate, shrink;
    bool factored;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    const double root_n = ::sqrt(static_cast<double>(s.elements));
    const double rms_p = s.elements > 0 ? s.parameter_norm / root_n : 0.0;
    const double rms_u = s.elements > 0 ? s.measured_norm / root_n / clip : 0.0;
    const double scale = !scales ? 1.0 : rms_p > least_scale ? rms_p : least_scale;
    const double rate = s.learning_rate * scale;
    return {static_cast<float>(1.0 - s.bias_correction1),
            static_cast<float>(s.bias_correction1),
            epsilon,
            static_cast<float>(rms_u > 1.0 ? rate / rms_u : rate),
            static_cast<float>(rate * s.weight_decay),
            s.factored};
  }
  SNUG_RULE float measured(const Step& s, float, float g, const float* state) const {
    const float v = s.keep * state[0] + s.take * (g * g + s.epsilon);
    return s.factored ? state[0] * g : g / root(v);
  }
  SNUG_RULE float element(const Step& s, float p, float g, float* state) const {
    const float u = measured(s, p, g, state);
    const float v = s.keep * state[0] + s.take * (g * g + s.epsilon);
    state[0] = s.factored ? state[0] : v;
    return (p - s.shrink * p) - s.rate * u;
  }
};

struct Adafactor {
  static constexpr const char* kName = "adafactor";
  static constexpr int kUses = kUsesNone;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() {
    return {{"clip_threshold", 1, 1e-6, kUnbounded, "what the rms of an update is at most"},
            {"decay_rate", -0.8, -10, 0, "the power of t by which new squares count less"},
            {"eps1", 1e-30, 1e-38, kUnbounded, "added to squares"},
            {"eps2", 1e-3, 0, kUnbounded, "the least rms of a parameter, with scale_parameter"},
            {"scale_parameter", 0, 0, 2, "1: the rate is times the rms of the parameter"}};
  }
  static OptimDefaults defaults() { return {1e-3, 0}; }
  static std::vector<OptimState> states(const OptimizerConfig&) {
    return {{"exp_avg_sq", kSquares}};
  }
  static void check(const OptimizerConfig& c) {
    if (c.state != StateForm::f32)
      refuse("adafactor with states in fp32, a row and a column of each matrix",
             std::string("optim: adafactor, states in ") + to_string(c.state), "optim=adafactor");
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    run(AdafactorRule(c, settings()));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
