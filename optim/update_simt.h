// The updates of optim/optimizer.h for engine/simt: the rules of optim/rules, which the CPU's loops
// have too, so the same bits, over all spans of a state store.
//
// Every number of the step is read from the StepState on the queue's side: gradients are unscaled
// and clipped on the way, if found_inf is set nothing is written but the weights, rounded anew, and
// the states count as zero when no update was applied before.
//
// Launches  one for all spans, as far as the tensors lie alike: a span's place in each of them is
//           that of the first span and the same number of elements on. Where that changes another
//           one begins, and after kSpansOfALaunch spans; neighbours of one group without a gap
//           count as one. No memory is taken: the table of spans is an argument of the kernel.
// Queue     simt::Queue of the side that is linked. Shapes and the config have been checked, and
//           loss_scale is above 0. threads: of a block.
// Traffic   12 bytes an element and 8 a state; 2 more with 16-bit weights.
#pragma once

#include <array>

#include "optim/elementwise.h"

namespace snug {

// n elements each. f32, but weights: bf16 or f16, or undefined; the same in all spans of a call.
struct UpdateSpan {
  View master, gradient, weights;
  std::array<View, kMaxStates> states;  // those of the optimizer, in its order
  int group = 0;                        // number_of_group() of optim/rule.h
};

inline constexpr int kSpansOfALaunch = 1024;

// A list of spans that need not exist at once: `at` is called once for each, in order.
struct UpdateSpans {
  size_t count;
  UpdateSpan (*at)(const void* list, size_t i);
  const void* list;
};

// weights: their dtype, if any span has some.
template <class Queue>
void optimizer_update_on(Queue& queue, const OptimizerConfig& config, const UpdateSpans& spans,
                         DType weights, const View& state, int threads = 256);

}  // namespace snug
