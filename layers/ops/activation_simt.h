// The kernels of layers/ops/activation.h for engine/simt: the same mathematics, dtypes and
// aliasing.
//
// Numerics  float; exp and erf of engine/simt/math.h (2 ulp) where the CPU has polynomials, so y
//           errs by less than 1e-6 |x| and dx by less than 1e-6 |dy|, before rounding to the dtype.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/activation.h"

namespace snug {

template <class Queue>
void activation_forward_on(Queue& queue, const View& y, const View& x, Activation kind,
                           int threads = 256);

template <class Queue>
void activation_backward_on(Queue& queue, const View& dx, const View& dy, const View& x,
                            Activation kind, int threads = 256);

}  // namespace snug
