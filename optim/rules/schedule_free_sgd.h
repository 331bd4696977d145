// Schedule-free SGD: plain steps, and an average of their points (optim/schedule_free_rule.h):
//   u = g + decay y
// Its momentum says how near to the average gradients are taken, and is a setting of its own.
// Defazio et al., "The Road Less Scheduled" (2024); schedulefree.SGDScheduleFree.
#pragma once

#include "optim/schedule_free_rule.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct ScheduleFreeSgd {
  static constexpr const char* kName = "schedule_free_sgd";
  static constexpr int kUses = kUsesNone;
  static constexpr bool kKeepsOthers = true;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() {
    std::vector<OptimSetting> all = schedule_free_settings();
    all.push_back({"momentum", 0.9, 0, 1, "how near to the average gradients are taken"});
    return all;
  }
  static OptimDefaults defaults() { return {1.0, 0}; }
  static std::vector<OptimState> states(const OptimizerConfig&) { return {"z_minus_y"}; }
  static void check(const OptimizerConfig& c) {
    check_schedule_free(c, kName, "momentum", optim_arg(c, settings(), "momentum"));
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    with_schedule_free<false>(c, settings(), optim_arg(c, settings(), "momentum"), run);
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
