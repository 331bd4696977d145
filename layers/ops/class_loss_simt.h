// The kernels of layers/ops/class_loss.h for engine/simt: the same mathematics, dtypes and
// aliasing.
//
// Numerics  a warp a row: exp of floats, their sums in float, lanes in pairs; logarithms in double.
//           The sum of all losses is in another order than on the CPU, in double.
// Errors    Kernels cannot throw: who has the targets on the host checks them, as the op does. A
//           class outside its range gives NaN.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/class_loss.h"

namespace snug {

// With a state that is defined: a second launch, of one block, that collects.
template <class Queue>
void class_loss_forward_on(Queue& queue, const View& loss, const View& logits, const View& targets,
                           ClassLoss kind, const View& state, int threads = 256);

template <class Queue>
void class_loss_backward_on(Queue& queue, const View& dlogits, const View& logits,
                            const View& targets, ClassLoss kind, const View& state,
                            int threads = 256);

}  // namespace snug
