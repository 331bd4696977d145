#include "optim/checks.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "optim/kahan.h"
#include "optim/percentile.h"

namespace snug {
namespace {

void check_beta(const char* key, double value, std::string advice) {
  if (!(value >= 0 && value < 1))
    refuse(fmt::format("{} in [0, 1)", key), setting(key, value), std::move(advice));
}

// `value` must be the default of a setting that `c.name` has no use for.
void refuse_unused(const OptimizerConfig& c, const char* key, double value, double standard,
                   const char* user) {
  if (value != standard)
    refuse(fmt::format("only settings that {} uses", c.name),
           fmt::format("{}, a setting of {}", setting(key, value), user),
           fmt::format("optim={}, or leave {} out", user, key));
}

}  // namespace

void refuse(std::string expected, std::string found, std::string advice) {
  fail(ErrorCode::usage, std::move(expected), std::move(found), std::move(advice));
}

std::string setting(const char* key, double value) {
  return fmt::format("{}: {}", key, value);
}

void check_finite(const char* key, double value, const char* advice) {
  if (!std::isfinite(value)) refuse(fmt::format("a finite {}", key), setting(key, value), advice);
}

void check_at_least_zero(const char* key, double value, const char* advice) {
  if (!(std::isfinite(value) && value >= 0))
    refuse(fmt::format("{} of at least 0", key), setting(key, value), advice);
}

void check_base_settings(const OptimizerConfig& c) {
  check_at_least_zero("learning_rate", c.learning_rate, "learning_rate=6e-4");
  check_at_least_zero("weight_decay", c.weight_decay, "weight_decay=0.1");
}

void check_betas(const OptimizerConfig& c, const char* usual_beta2) {
  check_beta("adam_beta1", c.adam_beta1, "adam_beta1=0.9");
  check_beta("adam_beta2", c.adam_beta2, std::string("adam_beta2=") + usual_beta2);
}

void check_epsilon(const OptimizerConfig& c) {
  check_at_least_zero("adam_epsilon", c.adam_epsilon, "adam_epsilon=1e-8");
}

void check_momentum(const OptimizerConfig& c) {
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
}

void check_flag(const char* key, double value) {
  if (value != 0 && value != 1)
    refuse(fmt::format("{} of optim_args as 0 or 1", key), setting(key, value),
           fmt::format("optim_args={}=1", key));
}

void refuse_unused_settings(const OptimizerConfig& c, const OptimFacts& facts) {
  const OptimizerConfig standard;
  if ((facts.uses & kUsesBetas) == 0) {
    refuse_unused(c, "adam_beta1", c.adam_beta1, standard.adam_beta1, "adamw");
    refuse_unused(c, "adam_beta2", c.adam_beta2, standard.adam_beta2, "adamw");
  }
  if ((facts.uses & kUsesEpsilon) == 0)
    refuse_unused(c, "adam_epsilon", c.adam_epsilon, standard.adam_epsilon, "adamw");
  if ((facts.uses & kUsesMomentum) == 0) {
    refuse_unused(c, "sgd_momentum", c.sgd_momentum, 0, "sgd");
    refuse_unused(c, "sgd_nesterov", c.sgd_nesterov ? 1 : 0, 0, "sgd");
    refuse_unused(c, "sgd_dampening", c.sgd_dampening, 0, "sgd");
  }
}

void check_args(const OptimizerConfig& c, const OptimFacts& facts) {
  std::vector<std::string_view> known;
  for (const OptimSetting& s : facts.settings) known.emplace_back(s.name);
  for (const auto& [name, value] : c.args) {
    if (name == kKahanArgument || name == kPercentileArgument) continue;  // of no optimizer's own
    const OptimSetting* found = nullptr;
    for (const OptimSetting& s : facts.settings)
      if (name == s.name) found = &s;
    if (found == nullptr) {
      const std::string otherwise = known.empty() ? "leave optim_args out"
                                                  : fmt::format("optim_args={}={}", known.front(),
                                                                facts.settings[0].standard);
      known.insert(known.end(), {kKahanArgument, kPercentileArgument});
      refuse(fmt::format("optim_args of {}: {}", facts.name, fmt::join(known, ", ")),
             setting(name.c_str(), value), suggestion(name, known, otherwise));
    }
    if (!(value >= found->least && value < found->below && std::isfinite(value)))
      refuse(found->below == kUnbounded
                 ? fmt::format("{} of optim_args at least {}", name, found->least)
                 : fmt::format("{} of optim_args in [{}, {})", name, found->least, found->below),
             setting(name.c_str(), value), fmt::format("optim_args={}={}", name, found->standard));
  }
}

NameAdvice name_advice(const char* key, std::string_view asked,
                       const std::vector<std::string>& known) {
  const std::string_view nearest = closest(asked, {known.begin(), known.end()});
  return {fmt::format("{} to be one of {}", key, fmt::join(known, ", ")),
          !nearest.empty() ? fmt::format("did you mean {}={}?", key, nearest)
                           : fmt::format("{}={}", key, known.front())};
}

}  // namespace snug
