// gradient_norm.h for engine/simt.
//
// Numerics  as sums_simt.h: in double, in another order than on the CPU.
// Memory    gradient_norm_on: `partial` of 2 square_chunks(n) doubles for the longest run of n
//           elements without a gap; those of all gradients are enough.
// Queue     simt::Queue of the side that is linked. Shapes have been checked.
#pragma once

#include "engine/kernels/sums_simt.h"
#include "engine/memory/step_state.h"
#include "engine/seams/state_store.h"

namespace snug {

// grad_square_sum, found_inf and first_bad_element as before a sum.
template <class Queue>
void gradient_norm_reset_on(Queue& queue, const View& state);

// Of every slot, with a loss scale of 1; and the slots added in order.
template <class Queue>
void gradient_norm_slots_on(Queue& queue, const View& slots);
template <class Queue>
void gradient_norm_join_on(Queue& queue, const View& slots, const View& state);

template <class Queue>
void gradient_norm_on(Queue& queue, const View& gradients, const std::vector<StateSpan>& spans,
                      const View& partial, const View& state, int threads = 256);

}  // namespace snug
