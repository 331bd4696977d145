// The kernels of layers/ops/rows.h for engine/simt: the same mathematics, dtypes, accumulation and
// bits.
//
// Memory    backward: `source` (N) i32.
// Traffic   accesses of 16 bytes where C is a multiple of them and pointers are aligned, else value
//           by value. Backward writes and reads 4 bytes a row of dx besides.
// Errors    Kernels cannot throw: who has the index on the host checks it, as the op does. An index
//           outside gives a row of NaN forward and is passed over backward; of equal ones the last
//           counts.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/rows.h"

namespace snug {

template <class Queue>
void rows_gather_forward_on(Queue& queue, const View& y, const View& x, const View& index,
                            int threads = 256);

template <class Queue>
void rows_gather_backward_on(Queue& queue, const View& dx, const View& dy, const View& index,
                             bool add_dx, const View& source, int threads = 256);

}  // namespace snug
