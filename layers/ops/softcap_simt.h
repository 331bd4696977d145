// The kernels of layers/ops/softcap.h for engine/simt: the same mathematics, dtypes and aliasing.
//
// Numerics  tanh of engine/simt/math.h (2 ulp) where the CPU has polynomials.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/softcap.h"

namespace snug {

template <class Queue>
void softcap_forward_on(Queue& queue, const View& y, const View& x, float cap, int threads = 256);

template <class Queue>
void softcap_backward_on(Queue& queue, const View& dx, const View& dy, const View& y, float cap,
                         int threads = 256);

}  // namespace snug
