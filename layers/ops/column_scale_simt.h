// The kernels of layers/ops/column_scale.h for engine/simt: the same mathematics and dtypes; dg is
// summed in another order.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
// Memory    `partial` of row_chunks(N) * C floats (engine/kernels/row_chunks.h).
#pragma once

#include "layers/ops/column_scale.h"

namespace snug {

template <class Queue>
void column_scale_on(Queue& queue, const View& y, const View& v, const View& g, const View& b,
                     int threads = 256);

template <class Queue>
void column_scale_sum_on(Queue& queue, const View& dg, const View& partial, const View& dy,
                         const View& v, int threads = 256);

}  // namespace snug
