// The kernels of layers/ops/front_keys.h for engine/simt: the same mathematics, dtypes and bits.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/front_keys.h"

namespace snug {

template <class Queue>
void front_keys_forward_on(Queue& queue, const View& y, const View& tokens, const View& table,
                           FrontKeys f, int threads = 256);

template <class Queue>
void front_keys_backward_on(Queue& queue, const GradView& dtable, const View& dy,
                            const View& tokens, int64_t K, FrontKeys f, int threads = 256);

}  // namespace snug
