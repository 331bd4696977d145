// The clip factor of optim/clip.h for engine/simt, and the next loss scale.
//
// Queue     simt::Queue of the side that is linked. Settings have been checked.
#pragma once

#include "engine/memory/step_state.h"
#include "optim/loss_scaling.h"

namespace snug {

template <class Queue>
void clip_on(Queue& queue, const View& state, double max_grad_norm);

// update_loss_scale of optim/loss_scaling.h, where the scale is dynamic: the same bits.
template <class Queue>
void update_loss_scale_on(Queue& queue, const View& state, const LossScaling& config);

}  // namespace snug
