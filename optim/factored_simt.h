// The means and factors of optim/factored.h for engine/simt, with the same bits. factor, keep, take and
// first are those of the StepState on the queue's side (take: its first bias correction).
//
// Launches  four a matrix. Nothing is written in a skipped step.
// Traffic   8 bytes an element.
#pragma once

#include "engine/core/view.h"
#include "optim/factored.h"

namespace snug {

// gradient: f32; factors: as many numbers as the state; sums: factored_sums() of them, f64.
template <class Queue>
void factored_moments_on(Queue& queue, float epsilon, const View& gradient, int64_t rows,
                         const View& state_of_matrix, float* factors, double* sums,
                         const View& state);

}  // namespace snug
