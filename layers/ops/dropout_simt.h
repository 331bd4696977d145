// The kernel of layers/ops/dropout.h for engine/simt, the same forward and backward: the same
// masks, mathematics, dtypes and aliasing, and the same bits.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked, p is above 0. The
//           StepState is read on the queue's side. threads: of a block.
#pragma once

#include "layers/ops/dropout.h"

namespace snug {

template <class Queue>
void dropout_forward_on(Queue& queue, const View& y, const View& x, int64_t B, int64_t T,
                        const DropoutSpec& spec, const View& state, int threads = 256);

}  // namespace snug
