// The kernels of layers/ops/reward_loss.h for engine/simt: the same mathematics and dtypes.
//
// Numerics  the sum of all losses in double, in another order than on the CPU.
// Errors    Kernels cannot throw: who has the margins on the host checks them, as the op does.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/reward_loss.h"

namespace snug {

// One block.
template <class Queue>
void reward_loss_forward_on(Queue& queue, const View& loss, const View& rewards,
                            const View& margins, const RewardLoss& kind, const View& state,
                            int threads = 256);

template <class Queue>
void reward_loss_backward_on(Queue& queue, const View& drewards, const View& rewards,
                             const View& margins, const RewardLoss& kind, const View& state,
                             int threads = 256);

}  // namespace snug
