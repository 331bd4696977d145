// The kernels of layers/ops/embedding.h for engine/simt: the same mathematics, dtypes, modes and
// accumulation, and the same bits: rows are added in their order, without atomics.
//
// Method    dwte: a block for every row of dy; the block of a token's first row adds all of its
// rows,
//           which its warps find by looking at the tokens, 32 at a time. dwpe: a block for every
//           position, likewise.
// Cost      Every different token of the batch is looked for among all N: N / 32 steps of a warp,
//           from the cache.
// Errors    Kernels cannot throw: who has the tokens on the host checks them, as the op does. A
// token
//           or position outside its table gives a row of NaN forward and is passed over backward.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/embedding.h"

namespace snug {

template <class Queue>
void embedding_forward_on(Queue& queue, const View& y, const View& tokens, const View& wte,
                          const View& wpe, const View& state, const View& document_start = {},
                          int threads = 128);

template <class Queue>
void embedding_backward_on(Queue& queue, const GradView& dwte, const GradView& dwpe, const View& dy,
                           const View& tokens, const View& state, const View& document_start = {},
                           int threads = 128);

}  // namespace snug
