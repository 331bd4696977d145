// The loss of a reward model: of two answers the one that was chosen is to have the larger reward
// (Bradley and Terry, Biometrika 39, 1952; Ouyang et al., arXiv:2203.02155).
//
// Math      of a pair p: c = rewards[2 p], r = rewards[2 p + 1], m = margins[2 p], k = center:
//             loss[p] = -log sigmoid(c - r - m) + k (c + r)^2
//             dc = factor (2 k (c + r) - sigmoid(m + r - c)), dr = factor (2 k (c + r) + sigmoid(m + r - c)),
//             factor = inverse_tokens loss_scale of the StepState
//           As TRL 1.16.0 has it (trl/trainer/reward_trainer.py): k is center_rewards_coefficient (Eisenstein
//           et al., arXiv:2312.09244). A pair is one trained target, so a window's loss is the mean over
//           its pairs.
// Shapes    rewards, drewards, margins (2P,1), the chosen answer of a pair before the rejected one; loss (P).
//           A pair whose margin is NaN is none: loss 0, gradients 0, nothing counted. margins[2 p + 1] is not
//           read.
// dtypes    f32; drewards f32, bf16 or f16.
// Writes    loss and drewards assigned. Forward adds to the state: loss_sum += sum of loss (fp64, in the
//           order of the pairs), loss_tokens += pairs, neither scaled.
// Numerics  double, rounded once, on every place.
// Determinism  equal bits for any number of threads.
// Errors    data, before anything is computed, for an infinite margin.
#pragma once

#include "engine/memory/context.h"

namespace snug {

struct RewardLoss {
  double center = 0;

  auto operator<=>(const RewardLoss&) const = default;
};

void reward_loss_forward(Context& ctx, const View& loss, const View& rewards, const View& margins,
                         const RewardLoss& kind, const View& state);

void reward_loss_backward(Context& ctx, const View& drewards, const View& rewards,
                          const View& margins, const RewardLoss& kind, const View& state);

}  // namespace snug
