// The two ops of optim/adam_mini.h for engine/simt, with the same bits; of one run of blocks each.
//
// Launches  one each. Nothing is written in a skipped step.
#pragma once

#include "optim/adam_mini.h"

namespace snug {

// squares (blocks) of the run's gradient, whose elements a multiple of `block` are; f32.
template <class Queue>
void adam_mini_squares_on(Queue& queue, const AdamMiniNumbers& numbers, int64_t block,
                          const View& squares, const View& gradient, const View& state);

// Elements [from, from + n) of the run: the momentum is moved, and to = momentum / (sqrt(squares / bc2) + eps).
template <class Queue>
void adam_mini_direction_on(Queue& queue, const AdamMiniNumbers& numbers, int64_t block,
                            int64_t from, const View& to, const View& momentum, const View& squares,
                            const View& gradient, const View& state);

}  // namespace snug
