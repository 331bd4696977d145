#include "optim/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "engine/core/error.h"
#include "optim/checks.h"

namespace snug {
namespace {

using Type = ScheduleType;

struct Known {
  const char* name;
  Type type;
};
constexpr Known kTypes[] = {
    {"linear", Type::linear},
    {"cosine", Type::cosine},
    {"constant", Type::constant},
    {"constant_with_warmup", Type::constant_with_warmup},
    {"warmup_stable_decay", Type::warmup_stable_decay},
    {"wsd", Type::warmup_stable_decay},
    {"cosine_with_restarts", Type::cosine_with_restarts},
    {"cosine_with_min_lr", Type::cosine_with_min_lr},
    {"inverse_sqrt", Type::inverse_sqrt},
    {"polynomial", Type::polynomial},
};

bool is_one_of(Type type, std::initializer_list<Type> types) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

// A setting that the type has no use for must not be set.
void check_used(const ScheduleConfig& c, const char* key, bool set, bool used) {
  if (set && !used)
    refuse(fmt::format("only settings that lr_scheduler_type {} uses", c.type), key,
           fmt::format("leave {} out, or choose a schedule that uses it", key));
}

void check_unused_settings(const ScheduleConfig& c, Type t) {
  const bool wsd = t == Type::warmup_stable_decay;
  check_used(c, "stable_steps", c.stable_steps.has_value(), wsd);
  check_used(c, "decay_steps", c.decay_steps.has_value(), wsd);
  check_used(c, "decay_type", c.decay_type.has_value(), wsd);
  check_used(c, "power", c.power.has_value(), t == Type::polynomial);
  check_used(c, "timescale", c.timescale.has_value(), t == Type::inverse_sqrt);
  if (c.min_lr_ratio && t == Type::cosine)
    refuse("lr_scheduler_type cosine without a least rate",
           setting("min_lr_ratio", *c.min_lr_ratio), "lr_scheduler_type=cosine_with_min_lr");
  check_used(c, "min_lr_ratio", c.min_lr_ratio.has_value(),
             wsd || is_one_of(t, {Type::cosine_with_min_lr, Type::polynomial}));
  check_used(c, "num_cycles", c.num_cycles.has_value(),
             is_one_of(t, {Type::cosine, Type::cosine_with_restarts, Type::cosine_with_min_lr}) ||
                 (wsd && c.decay_type.value_or("cosine") == "cosine"));
}

// Counts of steps stay small enough that sums of a few cannot overflow.
constexpr int64_t kMostSteps = 1'000'000'000'000'000;

void check_count(const char* key, int64_t value, int64_t least, const char* advice) {
  if (value < least || value > kMostSteps)
    refuse(fmt::format("{} of at least {} and at most 1e15", key, least),
           fmt::format("{}: {}", key, value), advice);
}

}  // namespace

ScheduleType parse_schedule_type(std::string_view name) {
  for (const Known& k : kTypes)
    if (name == k.name) return k.type;
  const NameAdvice a = name_advice("lr_scheduler_type", name, schedule_names());
  refuse(a.expected, fmt::format("lr_scheduler_type: {}", name), a.advice);
}

DecayType parse_decay_type(std::string_view name) {
  if (name == "linear") return DecayType::linear;
  if (name == "cosine") return DecayType::cosine;
  if (name == "1-sqrt") return DecayType::one_minus_sqrt;
  const NameAdvice a = name_advice("decay_type", name, {"cosine", "linear", "1-sqrt"});
  refuse(a.expected, fmt::format("decay_type: {}", name), a.advice);
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Known& k : kTypes) names.emplace_back(k.name);
  return names;
}

LearningRateSchedule::LearningRateSchedule(const ScheduleConfig& c)
    : type_(parse_schedule_type(c.type)), warmup_(c.warmup_steps), total_(c.total_steps) {
  check_unused_settings(c, type_);
  check_count("warmup_steps", warmup_, 0, "warmup_steps=100");
  if (type_ == Type::constant && warmup_ > 0)
    refuse("lr_scheduler_type constant without warm-up", fmt::format("warmup_steps: {}", warmup_),
           "lr_scheduler_type=constant_with_warmup");
  if (!is_one_of(type_, {Type::constant, Type::constant_with_warmup, Type::inverse_sqrt}))
    check_count("total_steps", total_, 1, "max_steps=1000");

  if (c.min_lr_ratio && !(*c.min_lr_ratio >= 0 && *c.min_lr_ratio <= 1))
    refuse("min_lr_ratio in [0, 1]", setting("min_lr_ratio", *c.min_lr_ratio), "min_lr_ratio=0.1");
  if (type_ == Type::cosine_with_min_lr && !c.min_lr_ratio)
    refuse("min_lr_ratio for lr_scheduler_type cosine_with_min_lr", "no min_lr_ratio",
           "min_lr_ratio=0.1, or lr_scheduler_type=cosine");
  least_ = c.min_lr_ratio.value_or(0);
  if (type_ == Type::polynomial && !c.min_lr_ratio) {
    constexpr double kPolynomialEnd = 1e-7;
    if (!(c.learning_rate > kPolynomialEnd))
      refuse("a learning_rate above 1e-7, where lr_scheduler_type polynomial ends",
             setting("learning_rate", c.learning_rate), "learning_rate=6e-4, or min_lr_ratio=0");
    least_ = kPolynomialEnd / c.learning_rate;
  }

  cycles_ = c.num_cycles.value_or(type_ == Type::cosine_with_restarts ? 1.0 : 0.5);
  if (!(std::isfinite(cycles_) && cycles_ > 0))
    refuse("num_cycles above 0", setting("num_cycles", cycles_), "num_cycles=1");
  power_ = c.power.value_or(1.0);
  if (!(std::isfinite(power_) && power_ > 0))
    refuse("power above 0", setting("power", power_), "power=1");
  timescale_ = c.timescale.value_or(warmup_ > 0 ? warmup_ : 10000);
  check_count("timescale", timescale_, 1, "timescale=10000");

  if (type_ != Type::warmup_stable_decay) return;
  if (c.decay_type) decay_ = parse_decay_type(*c.decay_type);
  check_count("stable_steps", c.stable_steps.value_or(0), 0, "stable_steps=800");
  check_count("decay_steps", c.decay_steps.value_or(0), 0, "decay_steps=200");
  if (!c.stable_steps && !c.decay_steps)
    refuse(fmt::format("decay_steps or stable_steps for lr_scheduler_type {}", c.type), "neither",
           fmt::format("decay_steps={}", std::max<int64_t>(1, total_ / 5)));
  stable_ = c.stable_steps.value_or(total_ - warmup_ - c.decay_steps.value_or(0));
  decay_steps_ = c.decay_steps.value_or(total_ - warmup_ - stable_);
  if (stable_ < 0 || decay_steps_ < 0 || warmup_ + stable_ + decay_steps_ != total_)
    refuse(fmt::format("warmup_steps + stable_steps + decay_steps = total_steps = {}", total_),
           fmt::format("{} + {} + {}", warmup_, stable_, decay_steps_),
           "leave stable_steps out: it is then what remains");
}

double LearningRateSchedule::progress(int64_t step) const {
  return static_cast<double>(step - warmup_) /
         static_cast<double>(std::max<int64_t>(1, total_ - warmup_));
}

double LearningRateSchedule::stable_then_decay(int64_t step) const {
  const int64_t done = step - warmup_ - stable_;
  if (done < 0) return 1.0;
  if (done >= decay_steps_) return least_;
  const double x = static_cast<double>(done) / static_cast<double>(decay_steps_);
  double f = 0;
  switch (decay_) {
    case DecayType::linear:
      f = 1.0 - x;
      break;
    case DecayType::cosine:
      f = 0.5 * (1.0 + std::cos(2.0 * std::numbers::pi * cycles_ * x));
      break;
    case DecayType::one_minus_sqrt:
      f = 1.0 - std::sqrt(x);
      break;
  }
  return std::max(0.0, f * (1.0 - least_) + least_);
}

double LearningRateSchedule::factor(int64_t step) const {
  require(step >= 0, "a step of at least 0");
  if (type_ == Type::constant) return 1.0;
  if (step < warmup_) {
    const double f = static_cast<double>(step) / static_cast<double>(warmup_);
    return type_ == Type::warmup_stable_decay ? f * (1.0 - least_) + least_ : f;
  }
  const double x = progress(step);
  switch (type_) {
    case Type::constant:
    case Type::constant_with_warmup:
      return 1.0;
    case Type::linear:
      return std::max(0.0, static_cast<double>(total_ - step) /
                               static_cast<double>(std::max<int64_t>(1, total_ - warmup_)));
    case Type::cosine:
    case Type::cosine_with_min_lr: {
      const double f = 0.5 * (1.0 + std::cos(2.0 * std::numbers::pi * cycles_ * x));
      return std::max(0.0, f * (1.0 - least_) + least_);
    }
    case Type::cosine_with_restarts:
      if (x >= 1.0) return 0.0;
      return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * std::fmod(cycles_ * x, 1.0))));
    case Type::polynomial:
      if (step >= total_) return least_;
      return least_ + (1.0 - least_) * std::pow(1.0 - x, power_);
    case Type::inverse_sqrt:
      return 1.0 / std::sqrt(static_cast<double>(step - warmup_ + timescale_) /
                             static_cast<double>(timescale_));
    case Type::warmup_stable_decay:
      return stable_then_decay(step);
  }
  require(false, "a schedule type with a formula");
  return 0;
}

}  // namespace snug
