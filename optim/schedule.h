// Learning-rate schedules: the factor of the base rate at a step, a pure function of the step. The
// formulas are those of transformers.get_scheduler; like there, warm-up gives t / warmup_steps, so
// the first update of a warmed-up run has the factor 0.
//
// t step (0 for the first update), w warmup_steps, T total_steps, x = (t - w) / (T - w), m
// min_lr_ratio, c num_cycles. After the warm-up:
//   constant              1, and no warm-up
//   constant_with_warmup  1
//   linear                1 - x, at least 0
//   cosine                (1 + cos(2 pi c x)) / 2, c = 0.5
//   cosine_with_restarts  (1 + cos(pi (c x mod 1))) / 2, c = 1; 0 from T on
//   cosine_with_min_lr    m + (1 - m) cosine
//   polynomial            m + (1 - m) (1 - x)^power, power = 1; m from T on; without min_lr_ratio
//                         m = 1e-7 / learning_rate
//   inverse_sqrt          1 / sqrt((t - w + tau) / tau), tau = timescale, else w, else 10000
//   warmup_stable_decay   (wsd) warm-up from m; 1 for stable_steps; then over decay_steps
//                         m + (1 - m) f(x), x the part of the decay done, f = decay_type: linear
//                         1 - x, cosine (the default), 1-sqrt 1 - sqrt(x); then m
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

enum class ScheduleType : uint8_t {
  constant,
  constant_with_warmup,
  linear,
  cosine,
  cosine_with_restarts,
  cosine_with_min_lr,
  polynomial,
  inverse_sqrt,
  warmup_stable_decay
};
enum class DecayType : uint8_t { linear, cosine, one_minus_sqrt };

// What is not set takes the default above. What is set and has no meaning for the type is refused.
struct ScheduleConfig {
  std::string type = "linear";
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;   // needed unless constant, constant_with_warmup or inverse_sqrt
  double learning_rate = 0;  // the base rate; needed by polynomial without min_lr_ratio
  std::optional<double> min_lr_ratio;   // in [0, 1]; needed by cosine_with_min_lr
  std::optional<int64_t> stable_steps;  // wsd: one of these two, or both if the three parts add up
  std::optional<int64_t> decay_steps;   // to total_steps
  std::optional<std::string> decay_type;
  std::optional<double> num_cycles;
  std::optional<double> power;
  std::optional<int64_t> timescale;
};

class LearningRateSchedule {
 public:
  // Throws usage on an unknown type and on settings that do not belong together.
  explicit LearningRateSchedule(const ScheduleConfig& config);

  ScheduleType type() const { return type_; }
  // Updates applied before this one -> factor of the base rate.
  double factor(int64_t step) const;

 private:
  double progress(int64_t step) const;  // x
  double stable_then_decay(int64_t step) const;

  ScheduleType type_ = ScheduleType::linear;
  DecayType decay_ = DecayType::cosine;
  int64_t warmup_ = 0, total_ = 0, stable_ = 0, decay_steps_ = 0, timescale_ = 0;
  double least_ = 0;
  double cycles_ = 0;
  double power_ = 1;
};

// Throws usage with the known names and the nearest one.
ScheduleType parse_schedule_type(std::string_view name);
DecayType parse_decay_type(std::string_view name);
std::vector<std::string> schedule_names();  // aliases included

}  // namespace snug
