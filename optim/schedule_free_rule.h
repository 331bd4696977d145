// What the schedule-free optimizers share: no schedule of rates, and an average x of the points z that
// plain steps go through. Gradients are taken at y, between them:
//   y = (1 - beta) z + beta x                         what is trained
//   x = (1 - c) x + c z,   z -= lr u(y)               what is kept
//   c = w_t / sum of w_1 .. w_t,   w_t = t^r (rate of t)^weight_lr_power
// In the first warmup_steps updates the rate is lr t / warmup_steps. With one rate besides, lr is no
// part of c, which is then a function of t alone: a resume needs no number beyond the count.
// The parameter is y and the state is d = z - y, which begins at 0 and wants no copy of the weights:
//   y += c d - lr (1 - beta (1 - c)) u      d = (1 - c) (d - lr beta u)      x = y - (1 / beta - 1) d
// A step ends with y = (y - s) + s, s = (1 / beta - 1) d in fp32. Then x = y - s and y = x + s go there
// and back without losing a bit (Reiser and Knuth, "Evading the drift in floating-point addition",
// 1975), for a rounding of y.
// Defazio et al., "The Road Less Scheduled" (2024); the package schedulefree.
#pragma once

#include "optim/checks.h"
#include "optim/rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

// 1^r + 2^r + ... + n^r, beyond 256 by Euler and Maclaurin's formula, whose next term is below 1e-13 of
// the sum for r up to 8.
inline double sum_of_powers(double r, int64_t n) {
  if (r == 0) return static_cast<double>(n);
  constexpr int64_t kByHand = 256;
  double sum = 0;
  for (int64_t t = 1; t <= std::min(n, kByHand); ++t) sum += std::pow(static_cast<double>(t), r);
  if (n <= kByHand) return sum;
  const auto a = static_cast<double>(kByHand), b = static_cast<double>(n);
  const auto less = [&](double power) { return std::pow(b, power) - std::pow(a, power); };
  return sum + less(r + 1) / (r + 1) + less(r) / 2 + r * less(r - 1) / 12 -
         r * (r - 1) * (r - 2) * less(r - 3) / 720;
}

// The share of z_t in the average.
inline double schedule_free_share(int64_t t, int64_t warmup, double r, double power) {
  const auto n = static_cast<double>(t), w = static_cast<double>(warmup);
  const double scale = warmup > 0 ? std::pow(w, -power) : 1.0;
  if (t <= warmup) return std::pow(n, r + power) * scale / (sum_of_powers(r + power, t) * scale);
  const double before = warmup > 0 ? sum_of_powers(r + power, warmup) * scale : 0.0;
  const double behind = sum_of_powers(r, t) - (warmup > 0 ? sum_of_powers(r, warmup) : 0.0);
  return std::pow(n, r) / (before + behind);
}

inline std::vector<OptimSetting> schedule_free_settings() {
  return {{"r", 0, 0, 8, "the power of t in the weight of an update in the average"},
          {"warmup_steps", 0, 0, 1e9,
           "updates over which the rate rises; the key of that name is the same"},
          {"weight_lr_power", 2, 0, 8, "the power of the rate in that weight"}};
}

template <bool adam>
struct ScheduleFreeRule {
  static constexpr int kStates = adam ? 2 : 1, kFlops = adam ? 24 : 14;
  double beta, beta2, r, power;
  int64_t warmup;
  float beta2_f, one_minus_beta2, epsilon, ratio;

  ScheduleFreeRule(const OptimizerConfig& c, const std::vector<OptimSetting>& settings, double b)
      : beta(b),
        beta2(c.adam_beta2),
        r(optim_arg(c, settings, "r")),
        power(optim_arg(c, settings, "weight_lr_power")),
        warmup(static_cast<int64_t>(optim_arg(c, settings, "warmup_steps"))),
        beta2_f(static_cast<float>(c.adam_beta2)),
        one_minus_beta2(static_cast<float>(1.0 - c.adam_beta2)),
        epsilon(static_cast<float>(c.adam_epsilon)),
        ratio(static_cast<float>(1.0 / b - 1.0)) {}

  // c, where Adam has a bias correction.
  void prepare(StepState& state) const {
    prepare_bias_corrections(state, 0.0, adam ? beta2 : 0.0);
    state.bias_correction1 =
        static_cast<float>(schedule_free_share(state.updates + 1, warmup, r, power));
  }

  struct Step {
    float take, keep, rate, lead, scale, decay;
  };
  SNUG_RULE Step step(const ElementStep& s) const {
    const int64_t t = s.updates + 1;
    const double ramp = t < warmup ? static_cast<double>(t) / static_cast<double>(warmup) : 1.0;
    const double lr = s.learning_rate * ramp, keep = 1.0 - s.bias_correction1;
    return {static_cast<float>(s.bias_correction1),
            static_cast<float>(keep),
            static_cast<float>(lr * (1.0 - beta * keep)),
            static_cast<float>(lr * beta),
            static_cast<float>(1.0 / ::sqrt(s.bias_correction2)),
            static_cast<float>(s.weight_decay)};
  }
  SNUG_RULE float element(const Step& s, float p, float g, float* state) const {
    float u = g;
    if constexpr (adam) {
      const float v = beta2_f * state[1] + one_minus_beta2 * (g * g);
      state[1] = v;
      u = g / (root(v) * s.scale + epsilon);
    }
    u = u + s.decay * p;
    const float d = s.keep * (state[0] - s.lead * u);
    const float y = p + (s.take * state[0] - s.rate * u);
    state[0] = d;
    const float apart = ratio * d;
    return (y - apart) + apart;
  }
};

// To x, or back to y. A rule's step rounds so that no bit is lost.
template <bool adam>
struct ScheduleFreeMove {
  static constexpr int kStates = adam ? 2 : 1, kFlops = 2;
  float ratio;  // below 0: back

  ScheduleFreeMove(const OptimizerConfig& c, double beta)
      : ratio(static_cast<float>(1.0 / beta - 1.0)) {
    if (c.moves == WeightsMove::to_trained) ratio = -ratio;
  }

  struct Step {
    float ratio;
  };
  SNUG_RULE Step step(const ElementStep&) const { return {ratio}; }
  SNUG_RULE float element(const Step& s, float p, float, const float* state) const {
    return p - s.ratio * state[0];
  }
};

inline void check_schedule_free(const OptimizerConfig& c, const char* name, const char* of,
                                double beta) {
  if (c.state != StateForm::f32)
    refuse(std::string(name) + " with states in fp32, of which its weights are made without a loss",
           std::string("optim: ") + name + ", states in " + to_string(c.state),
           std::string("optim=") + name);
  if (!(beta > 0 && beta < 1))
    refuse(std::string(of) + " above 0 and below 1, how near to the average gradients are taken",
           setting(of, beta), std::string(of) + "=0.9");
  for (const auto& [key, value] : c.args)
    if (key == "warmup_steps" && value != std::floor(value))
      refuse("warmup_steps as a number of steps", setting("warmup_steps", value),
             "optim_args=warmup_steps=" + std::to_string(static_cast<int64_t>(value)));
}

template <bool adam, class F>
void with_schedule_free(const OptimizerConfig& c, const std::vector<OptimSetting>& settings,
                        double beta, F&& run) {
  if (c.moves == WeightsMove::none)
    run(ScheduleFreeRule<adam>(c, settings, beta));
  else
    run(ScheduleFreeMove<adam>(c, beta));
}

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
