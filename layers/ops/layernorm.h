// Layer normalisation. Ba, Kiros, Hinton, "Layer Normalization", arXiv:1607.06450.
//
// Math      mean[n] = sum_c x[n][c] / C;  rstd[n] = 1 / sqrt(sum_c (x[n][c] - mean[n])^2 / C + eps)
//           xhat = (x - mean) rstd;  y = xhat weight + bias
//           g = dy weight;  dx = or += rstd (g - mean_c(g) - xhat mean_c(g xhat))
//           dweight[c] = or += sum_n dy xhat;  dbias[c] = or += sum_n dy
//           A dropped copy, if wanted: dropped = dropout(dx as stored), what dropout_backward would
//           make of it for the branch before, bit for bit, while the row is near.
// Shapes    x, y, dy, dx (N,C); mean, rstd (N) f32; weight, bias (C); dweight, dbias (C). An
//           undefined bias is zero. An undefined dweight or dbias is not wanted (frozen).
// dtypes    x, y, dy, dx: one of f32, bf16, f16; weight and bias: that one or f32; dweight, dbias:
//           f32 or bf16.
// Accumulation  add_dx adds to dx what is there in its dtype (the gradient of a residual branch),
//           with one rounding; a gradient is assigned or added as its GradView says.
// Aliasing  y may be x. dx may be dy if add_dx is false. dx is never x. The dropped copy may be dy
//           if dx is not.
// Numerics  float throughout; the variance takes a second pass over the row. Sums over a row and
//           over rows are in a fixed order (engine/kernels/wide.h, row_split.h). A bf16 dweight or
//           dbias is widened, added to in float and rounded once.
// Memory    backward with a wanted dweight or dbias: workspace (chunks,2,C) f32, at most 32 chunks,
//           of kernels at most 512.
// Traffic   forward reads x and writes y; backward reads dy and x and writes dx (reads it too when
//           adding); a dropped copy is one more write. Bound by memory bandwidth.
// Determinism  equal bits for any number of threads.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/grad_sink.h"
#include "layers/ops/dropout.h"

namespace snug {

void layernorm_forward(Context& ctx, const View& y, const View& mean, const View& rstd,
                       const View& x, const View& weight, const View& bias, float eps);

// An undefined `to`: no copy.
struct DroppedCopy {
  View to;  // of the shape and dtype of dx
  int64_t B = 0, T = 0;
  DropoutSpec dropout;
  View state;
};

void layernorm_backward(Context& ctx, const View& dx, bool add_dx, const GradView& dweight,
                        const GradView& dbias, const View& dy, const View& x, const View& weight,
                        const View& mean, const View& rstd, const DroppedCopy& dropped = {});

}  // namespace snug
