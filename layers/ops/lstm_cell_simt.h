// The kernels of layers/ops/lstm_cell.h for engine/simt: the same mathematics, dtypes and aliasing.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/lstm_cell.h"

namespace snug {

template <class Queue>
void lstm_cell_forward_on(Queue& queue, const View& h, const View& c, const View& gates,
                          const View& c_before, int threads = 256);

template <class Queue>
void lstm_cell_backward_on(Queue& queue, const View& dgates, const View& dc, const View& dh,
                           const View& gates, const View& c, const View& c_before,
                           int threads = 256);

}  // namespace snug
