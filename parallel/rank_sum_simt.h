// rank_sum.h for engine/simt: the bits of the loops, since every sum has one order.
//
// Queue  simt::Queue of the side that is linked. Shapes have been checked.
#pragma once

#include <cstddef>

#include "engine/core/view.h"
#include "engine/seams/grad_sink.h"

namespace snug {

// mine = (or +=) the sum over `ranks` of from[r]; f32 or bf16.
template <class Queue>
void sum_ranks_on(Queue& queue, const GradView& mine, const std::byte* const* from, int ranks);

// The sums of all ranks' StepStates, one behind the other in `all`, in that of this rank.
template <class Queue>
void sum_steps_on(Queue& queue, const View& state, const View& all, int ranks);

}  // namespace snug
