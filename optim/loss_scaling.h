// Loss scaling for fp16: the gradient of the loss is multiplied by a scale, so that small gradients
// of activations do not vanish below 2^-24, the least f16 there is. The update divides by it again
// before the norm and clipping (clip.h), and leaves everything as it was if a gradient is not
// finite. The scale then falls; after a number of good steps it grows. The rule is that of
// PyTorch's torch.amp.GradScaler (Micikevicius et al., "Mixed Precision Training", 2018).
#pragma once

#include <compare>

#include "engine/memory/context.h"
#include "engine/memory/step_state.h"

namespace snug {

struct LossScaling {
  double fixed_scale = 0;  // of every step; 0: the scale follows the gradients
  double init_scale = 65536;
  double growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // steps in a row with finite gradients after which it grows
  double min_scale = 1;            // it falls no further

  auto operator<=>(const LossScaling&) const = default;
  bool dynamic() const { return fixed_scale == 0; }
  float first_scale() const { return static_cast<float>(dynamic() ? init_scale : fixed_scale); }
  // Whether a gradient that is not finite at this scale leaves nothing to try.
  bool exhausted(float scale) const { return !dynamic() || double{scale} <= min_scale; }
};

// Throws usage, naming the setting: scales finite and above 0 (fixed_scale 0 or more),
// growth_factor above 1, backoff_factor in (0,1), growth_interval of at least 1, min_scale at most
// init_scale.
void check_loss_scaling(const LossScaling& config);

// Recorded op, after the optimizer's update of the same step: state.loss_scale and growth_tracker
// from state.found_inf. As GradScaler.update(): products are taken in double and rounded once; a
// scale that would not be finite does not grow.
void update_loss_scale(Context& ctx, const View& state, const LossScaling& config);

}  // namespace snug
