// Kernels that every folder needs: cast, copy, fill, add, scale, sums over rows, the norm of the
// gradients.
//
// Shapes     Elementwise kernels take two tensors of equal shape, any rank, no elements allowed.
// dtypes     "Float" below means f32, bf16 or f16. Arithmetic is float with one rounding to the
//            stored dtype, to nearest even; overflow goes to infinity.
// Aliasing   y may be the same tensor as x where both have the same dtype; no other overlap.
// Traffic    Every element once in and once out (twice in where it is added to): all are bound by
//            memory bandwidth.
// Determinism  Equal bits for equal inputs, whatever the number of threads.
// Errors     shape: the shapes differ. unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"
#include "engine/seams/grad_sink.h"

namespace snug {

// y = x in y's dtype; any pair of float dtypes.
void cast(Context& ctx, const View& y, const View& x);

// y = x, bytes; any dtype, the same for both.
void copy(Context& ctx, const View& y, const View& x);

// x = 0; any dtype.
void fill_zero(Context& ctx, const View& x);

// y += x; any pair of float dtypes.
void add(Context& ctx, const View& y, const View& x);

// x *= factor; float. The factor is a constant of the program, the same in every step.
void scale(Context& ctx, const View& x, float factor);

// out[c] = or += sum over n of x[n][c]; out (C) f32 or bf16, x (N,C) float. Summed in float: rows
// in order within a chunk (engine/kernels/row_split.h), then, onto what is added to, chunks in
// order. A bf16 out is rounded once, behind the last chunk. Workspace: (chunks,C) f32.
void column_sum(Context& ctx, const GradView& out, const View& x);

// For a flat gradient x, f32 or bf16, whose element 0 is number first_element of all gradients:
//   grad_square_sum += (sum of x[i]^2) / loss_scale^2,
// in double, over chunks of 64 Ki elements added in order. If an element is not finite, found_inf =
// 1 and first_bad_element = its number, unless that already names an earlier one; the sum is then
// not finite either. The host sets grad_square_sum = 0, found_inf = 0, first_bad_element = -1 and
// loss_scale (1 without loss scaling) before the step. Workspace: one double per chunk.
void sum_of_squares_and_finite(Context& ctx, const View& x, const View& state,
                               int64_t first_element = 0);

}  // namespace snug
