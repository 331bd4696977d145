// Checks of settings shared by the optimizers and schedules: they throw usage with the setting's
// name, its value and one that works.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer.h"

namespace snug {

[[noreturn]] void refuse(std::string expected, std::string found, std::string advice);
std::string setting(const char* key, double value);  // "adam_beta1: 1.5"

void check_finite(const char* key, double value, const char* advice);
void check_at_least_zero(const char* key, double value, const char* advice);

void check_base_settings(const OptimizerConfig& c);  // learning_rate, weight_decay
// In [0, 1); the advice names a usual beta2.
void check_betas(const OptimizerConfig& c, const char* usual_beta2);
void check_adam_settings(const OptimizerConfig& c);   // betas, epsilon >= 0
void refuse_adam_settings(const OptimizerConfig& c);  // any that is not the default
void refuse_epsilon(const OptimizerConfig& c);        // so
void refuse_sgd_settings(const OptimizerConfig& c);

// "one of adamw, adam" and, if one of `known` is close to `asked`, "did you mean adamw?".
struct NameAdvice {
  std::string expected;
  std::string advice;
};
NameAdvice name_advice(const char* key, std::string_view asked,
                       const std::vector<std::string>& known);

}  // namespace snug
