// Adam as torch.optim.Adam: weight decay is added to the gradient (L2) and goes through the moments.
// Kingma and Ba, "Adam: a method for stochastic optimization" (2015).
#pragma once

#include "optim/adam_rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr int kUses = kUsesBetas | kUsesEpsilon;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() { return {}; }
  static OptimDefaults defaults() { return {}; }
  static std::vector<const char*> states(const OptimizerConfig&) {
    return {"exp_avg", "exp_avg_sq"};
  }
  static void check(const OptimizerConfig&) {}
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    run(AdamRule(c, false));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
