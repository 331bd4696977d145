// Root mean square normalisation. Zhang and Sennrich, "Root Mean Square Layer Normalization",
// arXiv:1910.07467.
//
// Math      rstd[m] = 1 / sqrt(sum_c x[m][c]^2 / C + eps);  xhat = x rstd;  y = xhat w
//           w = weight, or 1 + weight with unit_offset, as Gemma keeps it
//           g = dy w;  dx = or += rstd (g - xhat mean_c(g xhat))
//           dweight[c] = or += sum_m dy xhat
// Shapes    x, y, dy, dx (N,C); weight, dweight (C); rstd (M) f32, one for every row that is
//           normalised: all N by default. HeadRows names others: the rows of some heads in packed
//           rows seen as (N,D); the rest of y and dx is not touched. An undefined dweight is not
//           wanted (frozen).
//           With HeadRows::columns x is (N,W), C of whose W columns are one row.
// dtypes    x, y, dy, dx: one of f32, bf16, f16; weight: that one or f32; dweight: f32 or bf16.
// Accumulation  add_dx adds to dx what is there in its dtype, with one rounding; dweight is
// assigned
//           or added as its GradView says.
// Aliasing  y may be x. dx may be dy if add_dx is false. dx is never x.
// Numerics  float throughout, y rounded once. (transformers' Llama rounds xhat to its dtype before
//           the product with the weight, its Gemma does not.) Sums over a row and over rows are in
//           a fixed order (engine/kernels/wide.h, row_split.h). A bf16 dweight is widened, added to
//           in float and rounded once.
// Memory    backward with a wanted dweight: workspace (chunks,C) f32, at most 32 chunks, of kernels
//           at most 512.
// Traffic   forward reads x and writes y; backward reads dy and x and writes dx (reads it too when
//           adding). Bound by memory bandwidth.
// Determinism  equal bits for any number of threads.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/grad_sink.h"

namespace snug {

// `count` rows of every `group`, from `first` on. The heads of q in qkv (N,(H+2G)D) seen as
// (N(H+2G),D) are {H + 2 G, 0, H}, those of k {H + 2 G, H, G}.
// All heads of q as one row of C = H D are {.columns = H D} in qkv as it is, those of k
// {.column = H D, .columns = G D}.
struct HeadRows {
  int64_t group = 1, first = 0, count = 1;
  int64_t column = 0, columns = 0;  // from column on; columns 0: all
  int64_t of(int64_t rows) const { return rows / group * count; }
};

void rmsnorm_forward(Context& ctx, const View& y, const View& rstd, const View& x,
                     const View& weight, float eps, bool unit_offset = false,
                     const HeadRows& heads = {});

void rmsnorm_backward(Context& ctx, const View& dx, bool add_dx, const GradView& dweight,
                      const View& dy, const View& x, const View& weight, const View& rstd,
                      bool unit_offset = false, const HeadRows& heads = {});

}  // namespace snug
