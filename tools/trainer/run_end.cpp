#include "tools/trainer/run_end.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/units.h"

namespace snug {

RunEnd run_end(const RunConfig& config, const RunPosition& at, int64_t total, int64_t samples,
               int64_t per_step) {
  RunEnd end;
  const auto add = [&](const std::string& why, const std::string& keys) {
    end.why += (end.why.empty() ? "" : ", and ") + why;
    end.goes_on += (end.goes_on.empty() ? "" : " ") + keys;
  };
  const auto steps_of = [&](double epochs) {
    return static_cast<int64_t>(
        std::ceil(static_cast<double>(samples) * epochs / static_cast<double>(per_step)));
  };
  if (config.early_stopping_patience > 0 && at.evals_without_gain >= config.early_stopping_patience)
    add(fmt::format("{} evaluations in a row were no better and early_stopping_patience is {} ({})",
                    at.evals_without_gain, config.early_stopping_patience,
                    config.where("early_stopping_patience")),
        fmt::format("early_stopping_patience={}",
                    at.evals_without_gain + config.early_stopping_patience));
  if (total > 0 && at.step >= total) {
    if (config.max_steps > 0 && at.step >= config.max_steps)
      add(fmt::format("max_steps is {} ({})", config.max_steps, config.where("max_steps")),
          fmt::format("max_steps={}", 2 * at.step));
    if (config.num_train_epochs > 0 && at.step >= steps_of(config.num_train_epochs)) {
      double epochs = std::floor(config.num_train_epochs) + 1;
      while (steps_of(epochs) <= at.step) ++epochs;
      add(fmt::format("num_train_epochs of {} are {} steps ({})", config.num_train_epochs,
                      steps_of(config.num_train_epochs), config.where("num_train_epochs")),
          fmt::format("num_train_epochs={}", epochs));
    }
  }
  if (config.max_time > 0 && at.elapsed >= config.max_time)
    add(fmt::format("it was trained for {} and max_time is {} ({})", human_seconds(at.elapsed),
                    human_seconds(config.max_time), config.where("max_time")),
        fmt::format("max_time={:.0f}s", std::ceil(at.elapsed + config.max_time)));
  return end;
}

}  // namespace snug
