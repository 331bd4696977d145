// The residual connection: adds what a branch made, dropped out on the way. Blocks use it fused
// with the projection before it (linear.h); this form is the truth that one is tested against.
//
// Math      y = x + dropout(branch), see layers/ops/dropout.h; with p = 0, y = x + branch.
//           The gradient of x is dy as it is; that of branch is dropout_backward(dy), or dy.
// Shapes    y, x, branch (N,C) with N = B*T; state as for dropout; undefined is allowed if p = 0.
// dtypes    one of f32, bf16, f16, the same for all tensors.
// Aliasing  y may be branch or x.
// Numerics  float, one rounding.
// Traffic   two reads, one write.
// Errors    usage: p outside [0,1).
#pragma once

#include "layers/ops/dropout.h"

namespace snug {

void residual_forward(Context& ctx, const View& y, const View& x, const View& branch, int64_t B,
                      int64_t T, const DropoutSpec& spec, const View& state);

}  // namespace snug
