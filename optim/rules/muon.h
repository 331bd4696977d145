// Muon: of the matrices of a model's layers the momentum of the gradient, with its singular values made
// nearly 1; AdamW for everything else:
//   b += (1 - momentum) (g - b)        u = nesterov ? g + momentum (b - g) : b
//   x = u / max(|u|, eps)              ns_steps times: a = x x^T, x = ns_a x + (ns_b a + ns_c a a) x
//   p -= lr (scale x + decay p)        scale = sqrt(max(1, rows / columns)), as published;
//                                      match_rms_adamw: 0.2 sqrt(max(rows, columns))
// Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), as torch.optim.Muon has
// it; match_rms_adamw: Liu et al., "Muon is Scalable for LLM Training" (2025). Products are in fp32; ns_bf16
// makes them bf16, as published. A matrix is (out, in): what the files of the model's family have as one
// tensor, and of tensors that hold them side by side queries, keys and values apart, as the author has it.
// The first state is b of matrices and exp_avg of all else; the second is of what AdamW updates alone.
#pragma once

#include "optim/adam_rule.h"
#include "optim/along_rule.h"
#include "optim/checks.h"

namespace snug {
inline namespace SNUG_RULE_SIDE {

// What is no matrix.
struct MuonRestRule : AdamRule {
  double ratio;  // of its rate and that of matrices

  MuonRestRule(const OptimizerConfig& c, double r) : AdamRule(c, true), ratio(r) {}

  SNUG_RULE Step step(const ElementStep& s) const {
    ElementStep own = s;
    own.learning_rate = s.learning_rate * ratio;
    return AdamRule::step(own);
  }
};

struct Muon {
  static constexpr const char* kName = "muon";
  static constexpr int kUses = kUsesBetas | kUsesEpsilon;
  static constexpr OptimReach kReach = OptimReach::matrix;
  // Of the rates that Muon and AdamW are published with, 0.02 and 3e-4.
  static constexpr double kUsualRatio = 0.015;

  static std::vector<const char*> aliases() { return {}; }
  static std::vector<OptimSetting> settings() {
    return {{"momentum", 0.95, 0, 1, "of matrices"},
            {"nesterov", 1, 0, 2, "1: a step looks ahead by its momentum"},
            {"ns_steps", 5, 1, 100, "how often x is mapped by the polynomial"},
            {"ns_a", 3.4445, -kUnbounded, kUnbounded, "of x in the polynomial"},
            {"ns_b", -4.775, -kUnbounded, kUnbounded, "of x^3"},
            {"ns_c", 2.0315, 1e-6, kUnbounded, "of x^5"},
            {"eps", 1e-7, 1e-30, kUnbounded, "the least norm that a matrix is divided by"},
            {"match_rms_adamw", 0, 0, 2, "1: steps as long as AdamW's usual ones, for its rates"},
            {"ns_bf16", 0, 0, 2, "1: products of matrices in bf16, as published"},
            {"aux_lr", 0, 0, kUnbounded,
             "the rate of what AdamW updates, by the same schedule; 0: learning_rate with "
             "match_rms_adamw, "
             "else 0.015 of it (3e-4 beside 0.02)"}};
  }
  static OptimDefaults defaults() { return {0.02, 0}; }
  static std::vector<OptimState> states(const OptimizerConfig& c) {
    if (c.along) return {};
    return {"exp_avg", {"exp_avg_sq", kSquares}};
  }
  static void check(const OptimizerConfig& c) {
    if (c.state != StateForm::f32)
      refuse("muon with states in fp32",
             std::string("optim: muon, states in ") + to_string(c.state), "optim=muon");
    for (const char* flag : {"nesterov", "match_rms_adamw", "ns_bf16"})
      check_flag(flag, optim_arg(c, settings(), flag));
    const double steps = optim_arg(c, settings(), "ns_steps");
    if (steps != std::floor(steps))
      refuse("a whole number of ns_steps", setting("ns_steps", steps), "optim_args=ns_steps=5");
    if (optim_arg(c, settings(), "aux_lr") > 0 && c.learning_rate == 0)
      refuse("a learning_rate above 0 beside aux_lr, which follows its schedule",
             setting("aux_lr", optim_arg(c, settings(), "aux_lr")), "learning_rate=0.02");
  }
  static double ratio(const OptimizerConfig& c) {
    const double own = optim_arg(c, settings(), "aux_lr");
    if (own > 0) return own / c.learning_rate;
    return optim_arg(c, settings(), "match_rms_adamw") != 0 ? 1.0 : kUsualRatio;
  }
  template <class F>
  static void with_rule(const OptimizerConfig& c, F&& run) {
    if (c.along)
      run(AlongRule(false));
    else
      run(MuonRestRule(c, ratio(c)));
  }
};

}  // namespace SNUG_RULE_SIDE
}  // namespace snug
