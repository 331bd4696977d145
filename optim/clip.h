// Clipping by the norm of all gradients (engine/kernels/gradient_norm.h) as
// torch.nn.utils.clip_grad_norm_ does it. Nothing is written to the gradients: the update
// multiplies them by clip_factor / loss_scale.
#pragma once

#include "engine/kernels/gradient_norm.h"

namespace snug {

// Recorded op, after gradient_norm: clip_factor = min(1, max_grad_norm / (norm + 1e-6)), where
// norm = sqrt(grad_square_sum). 1 if max_grad_norm is 0 (clipping is off) or if found_inf is set
// (the update will be skipped). Throws usage unless max_grad_norm is finite and at least 0.
void clip(Context& ctx, const View& state, double max_grad_norm);

}  // namespace snug
