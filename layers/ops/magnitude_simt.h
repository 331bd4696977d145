// The kernels of layers/ops/magnitude.h for engine/simt: the same mathematics and dtypes; a row's or
// column's sum is in another order.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/magnitude.h"

namespace snug {

template <class Queue>
void adapted_row_norms_on(Queue& queue, const View& norms, const View& w, const View& a,
                          const View& b, float s, int threads = 256);

template <class Queue>
void adapted_column_norms_on(Queue& queue, const View& norms, const View& e, const View& a,
                             const View& b, float s, int threads = 256);

template <class Queue>
void magnitude_factor_on(Queue& queue, const View& g, const View& m, const View& norms,
                         int threads = 256);

template <class Queue>
void magnitude_factor_backward_on(Queue& queue, const GradView& dm, const View& dg,
                                  const View& norms, int threads = 256);

}  // namespace snug
