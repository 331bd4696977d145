// The kernels of layers/ops/matrix_block.h for engine/simt: the same mathematics, dtypes and bits.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/matrix_block.h"

namespace snug {

template <class Queue>
void block_put_on(Queue& queue, const View& m, const View& b, BlockPlace place, int threads = 256);

template <class Queue>
void block_take_on(Queue& queue, const GradView& b, const View& m, BlockPlace place,
                   int threads = 256);

}  // namespace snug
