// The kernels of layers/ops/gated_activation.h for engine/simt: the same mathematics, dtypes and
// aliasing.
//
// Numerics  float; act as in activation_simt.h.
// Traffic   the least, in accesses of 16 bytes where F is a multiple of them and pointers are
//           aligned, else value by value.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/gated_activation.h"

namespace snug {

template <class Queue>
void gated_activation_forward_on(Queue& queue, const View& y, const View& gate_up, Activation kind,
                                 int threads = 256);

template <class Queue>
void gated_activation_backward_on(Queue& queue, const View& dgate_up, const View& dy,
                                  const View& gate_up, Activation kind, int threads = 256);

}  // namespace snug
