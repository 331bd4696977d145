// Columns times a vector, behind or before a product: what adapters that learn a scale do to
// activations (layers/parts/dora.h, layers/parts/ia3.h).
//
// Math      forward   y[n][c] = g[c] v[n][c] + b[c]
//           backward  dv[n][c] = g[c] dy[n][c];  dg[c] = sum over n of dy[n][c] v[n][c]
//           An undefined b adds nothing; an undefined dv or dg is not made.
// Shapes    y, v, dy, dv (N,C); g, dg (C) f32; b (C).
// dtypes    y, v, b, dy, dv one of f32, bf16, f16, the same for all.
// Aliasing  y may be v; dv may be dy.
// Numerics  float, one rounding. dg is summed in float: rows in order within a chunk
//           (engine/kernels/row_split.h), then chunks in order.
// Memory    dg: (chunks,C) f32.
// Traffic   one read and one write; with dg two reads.
// Determinism  equal bits for any number of threads.
// Errors    shape; unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"

namespace snug {

void column_scale_forward(Context& ctx, const View& y, const View& v, const View& g, const View& b);
void column_scale_backward(Context& ctx, const View& dv, const View& dg, const View& dy,
                           const View& v, const View& g);

}  // namespace snug
