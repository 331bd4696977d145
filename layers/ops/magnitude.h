// Magnitude and direction of a weight, as DoRA parts them: Liu et al., "DoRA", arXiv:2402.09353; in
// the form of PEFT, whose norm is a constant of backward (section 4.3 there).
//
// Math      adapted_row_norms          norms[j] = sqrt(sum over i of (W[j][i] + s sum over r of
//                                      B[j][r] A[r][i])^2)
//           adapted_column_norms       norms[i] = sqrt(sum over v of (E[v][i] + s sum over r of
//                                      A[v][r] B[i][r])^2), of a table, whose rows are read by number
//           magnitude_factor_forward   g[j] = m[j] / norms[j], and 1 where the norm is 0, whose row
//                                      makes nothing; without norms m[j]; without m 1
//           magnitude_factor_backward  dm[j] (+)= dg[j] / norms[j], and 0 where the norm is 0;
//                                      without norms dg[j]
// Shapes    W (O,I), A (R,I), B (O,R), norms, m, dm, g, dg (O). Of a table E (V,I), A (V,R), B (I,R),
//           norms (I).
// dtypes    W, E, A, B, norms, m one of f32, bf16, f16, the same for all; g, dg f32; dm f32 or bf16.
// Aliasing  none.
// Numerics  float; a row in pieces of 256 columns, a column in pieces of 64 rows, added in double.
//           norms are rounded once, to what m is held in, so that g is exactly 1 where m is the norm.
//           Kernels sum in another order, a row in float.
// Traffic   W once, A once for 32 rows; E once, A once for 32 columns. FLOPs 2 O I (R + 1), 2 V I (R + 1).
// Determinism  equal bits for any number of threads.
// Errors    shape; unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/grad_sink.h"

namespace snug {

void adapted_row_norms(Context& ctx, const View& norms, const View& w, const View& a, const View& b,
                       float s);
void adapted_column_norms(Context& ctx, const View& norms, const View& e, const View& a,
                          const View& b, float s);
void magnitude_factor_forward(Context& ctx, const View& g, const View& m, const View& norms);
void magnitude_factor_backward(Context& ctx, const GradView& dm, const View& dg, const View& norms);

}  // namespace snug
