// Schedule-free AdamW: steps of AdamW without a first moment, whose place an average of all points
// takes (optim/schedule_free_rule.h):
//   v = beta2 v + (1 - beta2) g^2      u = g / (sqrt(v / (1 - beta2^t)) + eps) + decay y
// Defazio et al., "The Road Less Scheduled" (2024); schedulefree.AdamWScheduleFree.
#pragma once

#include "optim/schedule_free_rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct ScheduleFreeAdamw {
  static constexpr const char* kName = "schedule_free_adamw";
  static constexpr int kUses = kUsesBetas | kUsesEpsilon;
  static constexpr bool kKeepsOthers = true;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() { return schedule_free_settings(); }
  static OptimDefaults defaults() { return {2.5e-3, 0}; }
  static std::vector<OptimState> states(const OptimizerConfig&) {
    return {"z_minus_y", {"exp_avg_sq", kSquares}};
  }
  static void check(const OptimizerConfig& c) {
    check_schedule_free(c, kName, "adam_beta1", c.adam_beta1);
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    with_schedule_free<true>(c, settings(), c.adam_beta1, run);
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
