// The rows of layers/ops/head_loss.h for engine/simt: what happens between the products of a chunk.
// Logits z (rows,Vp) f32, made by a product before; targets (rows) i32; nll, lse, dnll (rows) f32;
// dz (rows,Vp) f32, bf16 or f16, which for f32 may be z itself.
//
// Numerics  A thread sums its exponentials in float, the block in double: a row's sum is in another
//           order than on the CPU, with exp of engine/simt/math.h.
// Traffic   A row is read once from memory, by maximum and sum together, and once more from the
// cache
//           for the gradient.
// Errors    Kernels cannot throw: who has the targets on the host checks them, as the op does. A
//           target outside [0,V) that is not -100 gives nll and dz NaN.
// Determinism  equal bits for any order of threads and blocks; they depend on `threads`.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/head_loss.h"

namespace snug {

// nll and lse of every row.
template <class Queue>
void head_loss_forward_rows_on(Queue& queue, const View& nll, const View& lse, const View& z,
                               const View& targets, int64_t V, int threads = 256);

// nll, and dz for dnll = inverse_tokens * loss_scale of the state.
template <class Queue>
void head_loss_train_rows_on(Queue& queue, const View& dz, const View& nll, const View& z,
                             const View& targets, int64_t V, const View& state, int threads = 256);

// dz from lse and dnll.
template <class Queue>
void head_loss_backward_rows_on(Queue& queue, const View& dz, const View& dnll, const View& lse,
                                const View& z, const View& targets, int64_t V, int threads = 256);

// loss_sum += the sum of nll in double, loss_tokens += the targets that are not -100.
template <class Queue>
void head_loss_collect_on(Queue& queue, const View& state, const View& nll, const View& targets,
                          int threads = 256);

}  // namespace snug
