// What an optimizer is set with, as data: which keys of the configuration it has a use for, and the
// numbers of its own that `optim_args` gives it.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "optim/optimizer.h"

namespace snug {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// A number of `optim_args`, under the name that the reference gives it. In [least, below).
struct OptimSetting {
  const char* name;
  double standard;
  double least, below;
  const char* doc;
};

// Keys: adam_beta1 and adam_beta2; adam_epsilon; sgd_momentum, sgd_dampening and sgd_nesterov.
enum OptimUses : int { kUsesNone = 0, kUsesBetas = 1, kUsesEpsilon = 2, kUsesMomentum = 4 };

// Values that the configuration takes where the user gives none; 0: those of all optimizers.
struct OptimDefaults {
  double learning_rate = 0, adam_beta2 = 0;
};

struct OptimFacts {
  const char* name;
  int uses;
  std::vector<const char*> aliases;
  std::vector<OptimSetting> settings;
  OptimDefaults defaults;
  OptimReach reach;
  bool keeps_others = false;  // Optimizer::keeps_others
  // What to tell of a configuration, in which the optimizer does less than its name says; or empty.
  std::string (*note)(const OptimizerConfig&) = nullptr;  // null: nothing ever
};

// Of all optimizers, adamw first; by name or alias, null if there is none.
const std::vector<OptimFacts>& optimizer_facts();
const OptimFacts* find_optimizer(std::string_view name);

// What a name of optim says: [paged_]NAME[END of a form of states], NAME a name or an alias.
struct OptimName {
  const OptimFacts* facts = nullptr;  // null: no such optimizer
  StateForm state = StateForm::f32;
  bool says_state = false;  // there is something behind
  bool paged = false;       // states rest where the plan puts them, with the host if need be

  // The same in one form, without `paged_`: "adamw_8bit".
  std::string text() const;
};
OptimName optim_name(std::string_view name);
// The name of a configuration with what is behind it.
std::string optimizer_text(const OptimizerConfig& c);

// Names that Hugging Face has and that are refused, with the reason; empty for others.
std::string_view why_refused(std::string_view name);
const std::vector<std::string>& refused_optimizers();

// "alpha=0.95,momentum=0.9" as Hugging Face's optim_args: names and numbers. Throws usage on
// anything else, and on a name twice.
OptimArgs parse_optim_args(std::string_view text);
// The same in one form: names ascending.
std::string optim_args_text(const OptimArgs& args);

// The value of a setting: what args have, or its standard one.
double optim_arg(const OptimizerConfig& c, const std::vector<OptimSetting>& settings,
                 std::string_view name);

}  // namespace snug
