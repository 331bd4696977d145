// The kernels of layers/ops/column_fold.h for engine/simt: the same mathematics, dtypes and bits.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/column_fold.h"

namespace snug {

template <class Queue>
void column_fold_on(Queue& queue, const View& u, const View& x, FoldedColumns columns,
                    int threads = 256);

template <class Queue>
void column_lay_on(Queue& queue, const GradView& y, const View& v, FoldedColumns columns,
                   int threads = 256);

}  // namespace snug
