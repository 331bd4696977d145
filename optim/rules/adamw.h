// AdamW as torch.optim.AdamW: the parameter first shrinks by 1 - lr * weight_decay, apart from the
// gradient and its moments.
// Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).
#pragma once

#include "optim/adam_rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct Adamw {
  static constexpr const char* kName = "adamw";
  static constexpr int kUses = kUsesBetas | kUsesEpsilon;
  static std::vector<const char*> aliases() {
    return {"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_32bit"};
  }
  static std::vector<OptimSetting> settings() { return {}; }
  static OptimDefaults defaults() { return {}; }
  static std::vector<const char*> states(const OptimizerConfig&) {
    return {"exp_avg", "exp_avg_sq"};
  }
  static void check(const OptimizerConfig&) {}
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    run(AdamRule(c, true));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
