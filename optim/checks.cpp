#include "optim/checks.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "engine/core/error.h"

namespace snug {
namespace {

// Insertions, deletions and replacements that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min(replaced, std::min(row[j], row[j - 1]) + 1);
    }
  }
  return row[b.size()];
}

void check_beta(const char* key, double value, const char* advice) {
  if (!(value >= 0 && value < 1))
    refuse(fmt::format("{} in [0, 1)", key), setting(key, value), advice);
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

void check_adam_settings(const OptimizerConfig& c) {
  check_beta("adam_beta1", c.adam_beta1, "adam_beta1=0.9");
  check_beta("adam_beta2", c.adam_beta2, "adam_beta2=0.999");
  check_at_least_zero("adam_epsilon", c.adam_epsilon, "adam_epsilon=1e-8");
}

void refuse_adam_settings(const OptimizerConfig& c) {
  const OptimizerConfig standard;
  refuse_unused(c, "adam_beta1", c.adam_beta1, standard.adam_beta1, "adamw");
  refuse_unused(c, "adam_beta2", c.adam_beta2, standard.adam_beta2, "adamw");
  refuse_unused(c, "adam_epsilon", c.adam_epsilon, standard.adam_epsilon, "adamw");
}

void refuse_sgd_settings(const OptimizerConfig& c) {
  refuse_unused(c, "sgd_momentum", c.sgd_momentum, 0, "sgd");
  refuse_unused(c, "sgd_nesterov", c.sgd_nesterov ? 1 : 0, 0, "sgd");
  refuse_unused(c, "sgd_dampening", c.sgd_dampening, 0, "sgd");
}

NameAdvice name_advice(const char* key, std::string_view asked,
                       const std::vector<std::string>& known) {
  const std::string* nearest = nullptr;
  size_t least = asked.size() / 3 + 1;
  for (const std::string& name : known)
    if (const size_t d = edit_distance(asked, name); d <= least && (!nearest || d < least)) {
      least = d;
      nearest = &name;
    }
  return {fmt::format("{} to be one of {}", key, fmt::join(known, ", ")),
          nearest ? fmt::format("did you mean {}={}?", key, *nearest)
                  : fmt::format("{}={}", key, known.front())};
}

}  // namespace snug
