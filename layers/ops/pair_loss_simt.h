// The kernels of layers/ops/pair_loss.h for engine/simt: the same mathematics.
//
// Numerics  a warp a sum of logps: lanes sum in double, then in pairs; the sum of all losses in double, in
//           another order than on the CPU.
// Errors    Kernels cannot throw: who has the pairs on the host checks them, as the ops do. Of a sequence
//           outside of [0,N) the rows that are inside count.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/pair_loss.h"

namespace snug {

template <class Queue>
void sequence_logps_on(Queue& queue, const View& logps, const View& nll, const View& pairs,
                       int threads = 128);

// One block.
template <class Queue>
void pair_loss_forward_on(Queue& queue, const View& loss, const View& logps, const View& reference,
                          const View& pairs, const PairLoss& kind, const View& state,
                          int threads = 128);

// Two launches: zeros, then a warp a pair.
template <class Queue>
void pair_loss_backward_on(Queue& queue, const View& dnll, const View& logps, const View& reference,
                           const View& pairs, const PairLoss& kind, const View& state,
                           int threads = 128);

}  // namespace snug
