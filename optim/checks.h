// Checks of settings shared by the optimizers and schedules: they throw usage with the setting's
// name, its value and one that works.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optim/settings.h"

namespace snug {

[[noreturn]] void refuse(std::string expected, std::string found, std::string advice);
std::string setting(const char* key, double value);  // "adam_beta1: 1.5"

void check_finite(const char* key, double value, const char* advice);
void check_at_least_zero(const char* key, double value, const char* advice);

void check_base_settings(const OptimizerConfig& c);  // learning_rate, weight_decay
// In [0, 1), epsilon at least 0.
void check_betas(const OptimizerConfig& c, const char* usual_beta2);
void check_epsilon(const OptimizerConfig& c);
void check_momentum(const OptimizerConfig& c);   // of sgd, and what belongs to it
void check_flag(const char* key, double value);  // 0 or 1
// Throws usage on a setting that differs from its default and that the optimizer has no use for.
void refuse_unused_settings(const OptimizerConfig& c, const OptimFacts& facts);
// ... on a name of c.args that it does not have, and on values outside the ranges.
void check_args(const OptimizerConfig& c, const OptimFacts& facts);

// "one of adamw, adam" and, if one of `known` is close to `asked`, "did you mean adamw?".
struct NameAdvice {
  std::string expected;
  std::string advice;
};
NameAdvice name_advice(const char* key, std::string_view asked,
                       const std::vector<std::string>& known);

}  // namespace snug
