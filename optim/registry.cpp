// The list of optimizers. A new one adds its make function and one line here.
#include <fmt/format.h>

#include "optim/checks.h"
#include "optim/optimizer.h"

namespace snug {

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_adam(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config);
std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config);

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config);
  std::vector<const char*> aliases;  // Hugging Face's spellings of the same arithmetic
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = {
      {"adamw", make_adamw, {"adamw_torch", "adamw_torch_fused"}},
      {"adam", make_adam, {}},
      {"lion", make_lion, {"lion_32bit"}},
      {"sgd", make_sgd, {}},
  };
  return list;
}

bool is_called(const Entry& entry, std::string_view name) {
  if (name == entry.name) return true;
  for (const char* alias : entry.aliases)
    if (name == alias) return true;
  return false;
}

}  // namespace

Optimizer::Optimizer(OptimizerConfig config, const std::vector<const char*>& state_names)
    : config_(std::move(config)) {
  for (const char* name : state_names) state_names_.emplace_back(name);
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config) {
  std::vector<std::string> known;
  for (const Entry& entry : entries()) {
    if (is_called(entry, config.name)) {
      OptimizerConfig resolved = config;
      resolved.name = entry.name;
      return entry.make(resolved);
    }
    known.emplace_back(entry.name);
    for (const char* alias : entry.aliases) known.emplace_back(alias);
  }
  const NameAdvice a = name_advice("optim", config.name, known);
  refuse(a.expected, "optim: " + config.name, a.advice);
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.emplace_back(entry.name);
  return names;
}

}  // namespace snug
