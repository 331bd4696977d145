// A linear layer whose weight rests as whole numbers and whose input is rounded to such, row by row:
// LLM.int8(), the product of bitsandbytes' Linear8bitLt.
//
// Math      h = x as f16 holds it. With t the weight's threshold, x[n][k] is an outlier if t > 0 and
//           |h[n][k]| >= t. Of row n, without its outliers:
//             s[n] = max over k of |h[n][k]|,  q[n][k] = rne(h[n][k] (127 / s[n])), of outliers 0
//             p[n][m] = float(sum over k of q[n][k] c[m][k]) (s[n] w[m]) (1 / 127^2) + b[m]
//             o[n][m] = sum over the outliers, k ascending, of x[n][k] ((c[m][k] w[m]) (1/127))
//             y[n][m] = p[n][m] + o[n][m]
//           c and w: codes and scales of the weight (seams/weight_codes.h). A row of zeros has s = 0.
//           Backward: dx = dy W with W as its codes decode, which is engine/blas's product of the
//           decoded weight: rounding has the slope 1, as in bitsandbytes. Nothing is saved for it.
// Shapes    x (N,K), y (N,M); pieces of the weight (rows,K), M rows in all; b (M) or undefined.
// dtypes    x, y, b one of f32, bf16, f16, the same for all; codes u8; scales f32.
// Outliers  are a row's own. In bitsandbytes an outlier takes its whole column out of the codes, of
//           all rows of the matrix at once, so that what a token comes to depends on its neighbours; here
//           it does not: no micro-batch, packing or cache of keys changes a bit. Numbers differ in the
//           columns where some rows have an outlier and others have not: there the others are codes here
//           and 16 bits there. A matrix of one row, or without such columns, comes out alike, but that
//           bitsandbytes rounds p to the dtype before it adds o, and its loop for the CPU has
//           6.200124e-05 for 1 / 127^2, 2e-5 too much; its CUDA kernel has the right one.
// Not finite  a NaN in a row, and without outliers an infinity, makes all of its y NaNs.
// Aliasing  none.
// Numerics  the sum of whole numbers is exact up to 2^31 (K < 133,000), its float one rounding; no
//           product and sum is fused; y is rounded once.
// Memory    (N,K) bytes and 4 N for q and s; with a threshold N (K/8 + 4); K is rounded up to 32. On the
//           CPU also the weight's codes once more, in the order that the product reads: M K bytes.
// Traffic   x, y and the codes of the weight once.
// Determinism  equal bits for any number of threads, with and without AVX-512, on all places.
// Errors    shape; unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/weight_codes.h"

namespace snug {

void int8_linear_forward(Context& ctx, const View& y, const View& x, const Int8Weight& weight,
                         const View& bias);

}  // namespace snug
