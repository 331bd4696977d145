// AdamW of optim/adam_family.h for engine/simt: the same arithmetic in the same order, so the same
// bits, over one span of a state store.
//
// Every number of the step is read from the StepState on the queue's side: nothing is written if
// found_inf is set, and the moments count as zero when no update was applied before.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
// Traffic   28 bytes an element, 2 more with 16-bit weights, 2 less with bf16 gradients.
#pragma once

#include "optim/optimizer.h"

namespace snug {

// n elements each: f32, but gradient: f32 or bf16; weights: bf16, f16 or undefined.
struct AdamwSpan {
  View master, gradient, exp_avg, exp_avg_sq, weights;
  int group = 0;
};

template <class Queue>
void adamw_update_on(Queue& queue, const OptimizerConfig& config, const AdamwSpan& span,
                     const View& state, int threads = 256);

}  // namespace snug
