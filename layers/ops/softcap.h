// Soft caps of logits, as Gemma 2 has them.
//
// Math      y = cap tanh(x / cap), below cap in magnitude;  dx = dy (1 - (y / cap)^2)
// Shapes    x, y, dy, dx of one shape.
// dtypes    x, y: f32; dy, dx: one of f32, bf16, f16.
// Aliasing  y may be x; dx may be dy.
// Numerics  float, dx rounded once; y errs by 3e-7 of itself (kernels: 2 ulp of tanh).
// Traffic   forward reads x and writes y; backward reads dy and y and writes dx. Memory bound.
// Determinism  equal bits for any number of threads.
// Errors    usage: a cap that is not above 0. shape, unsupported: as everywhere.
#pragma once

#include "engine/memory/context.h"

namespace snug {

void softcap_forward(Context& ctx, const View& y, const View& x, float cap);
void softcap_backward(Context& ctx, const View& dx, const View& dy, const View& y, float cap);

}  // namespace snug
