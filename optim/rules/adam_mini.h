// Adam-mini: AdamW whose second moment is one number a block in place of one an element:
//   m += (1 - beta1) (g - m)       v = beta2 v + (1 - beta2) mean of g^2 over the block
//   p -= lr ((m / bc1) / (sqrt(v / bc2) + epsilon) + decay p)
// A block is a head of the queries and of the keys; a row of all other matrices: a token of the embedding
// and of the head, an output of a layer; all of a norm's weight. Biases have Adam's.
// Zhang et al., "Adam-mini: Use Fewer Learning Rates To Gain More" (2024), as version 1.1.1 of the authors'
// package has it, which finds blocks by name and so misses heads in tensors that hold queries, keys and
// values side by side; here these are found too.
#pragma once

#include "optim/adam_rule.h"
#include "optim/along_rule.h"
#include "optim/checks.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

struct AdamMini {
  static constexpr const char* kName = "adam_mini";
  static constexpr int kUses = kUsesBetas | kUsesEpsilon;
  static constexpr OptimReach kReach = OptimReach::blocks;
  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() { return {}; }
  static OptimDefaults defaults() { return {}; }
  static std::vector<OptimState> states(const OptimizerConfig& c) {
    if (c.along) return {};
    return {"exp_avg", {"exp_avg_sq", kSquares}};
  }
  static void check(const OptimizerConfig& c) {
    if (c.state != StateForm::f32)
      refuse("adam_mini with states in fp32",
             std::string("optim: adam_mini, states in ") + to_string(c.state), "optim=adam_mini");
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    if (c.along)
      run(AlongRule(true));
    else
      run(AdamRule(c, true));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
