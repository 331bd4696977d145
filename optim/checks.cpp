#include "optim/checks.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/suggest.h"

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

void check_adam_settings(const OptimizerConfig& c) {
  check_betas(c, "0.999");
  check_at_least_zero("adam_epsilon", c.adam_epsilon, "adam_epsilon=1e-8");
}

void refuse_adam_settings(const OptimizerConfig& c) {
  const OptimizerConfig standard;
  refuse_unused(c, "adam_beta1", c.adam_beta1, standard.adam_beta1, "adamw");
  refuse_unused(c, "adam_beta2", c.adam_beta2, standard.adam_beta2, "adamw");
  refuse_epsilon(c);
}

void refuse_epsilon(const OptimizerConfig& c) {
  refuse_unused(c, "adam_epsilon", c.adam_epsilon, OptimizerConfig().adam_epsilon, "adamw");
}

void refuse_sgd_settings(const OptimizerConfig& c) {
  refuse_unused(c, "sgd_momentum", c.sgd_momentum, 0, "sgd");
  refuse_unused(c, "sgd_nesterov", c.sgd_nesterov ? 1 : 0, 0, "sgd");
  refuse_unused(c, "sgd_dampening", c.sgd_dampening, 0, "sgd");
}

NameAdvice name_advice(const char* key, std::string_view asked,
                       const std::vector<std::string>& known) {
  const std::string_view nearest = closest(asked, {known.begin(), known.end()});
  return {fmt::format("{} to be one of {}", key, fmt::join(known, ", ")),
          !nearest.empty() ? fmt::format("did you mean {}={}?", key, nearest)
                           : fmt::format("{}={}", key, known.front())};
}

}  // namespace snug
