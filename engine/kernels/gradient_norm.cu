#include "engine/kernels/gradient_norm_simt.h"
#include "engine/seams/span_runs.h"
#include "engine/simt/simt.h"

namespace snug {
namespace {

// One thread.
__global__ void gradient_norm_reset_kernel(StepState* state) {
  if (simt::thread() > 0) return;
  state->grad_square_sum = 0;
  state->found_inf = 0;
  state->first_bad_element = -1;
}

// A thread a slot.
__global__ void gradient_norm_slots_kernel(StepState* slots, int64_t runs) {
  for (int64_t k = simt::thread(); k < runs; k += simt::threads()) {
    slots[k].loss_scale = 1;
    slots[k].grad_square_sum = 0;
    slots[k].found_inf = 0;
    slots[k].first_bad_element = -1;
  }
}

// One thread: sums of parts are few, and their order counts.
__global__ void gradient_norm_join_kernel(StepState* state, const StepState* slots, int64_t runs) {
  if (simt::thread() > 0) return;
  const double unscale = 1.0 / static_cast<double>(state->loss_scale);
  for (int64_t k = 0; k < runs; ++k) {
    state->grad_square_sum += slots[k].grad_square_sum * (unscale * unscale);
    if (slots[k].found_inf == 0) continue;
    state->found_inf = 1;
    if (state->first_bad_element < 0 || slots[k].first_bad_element < state->first_bad_element)
      state->first_bad_element = slots[k].first_bad_element;
  }
}

}  // namespace

template <class Queue>
void gradient_norm_reset_on(Queue& queue, const View& state) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "gradient_norm_reset",
               gradient_norm_reset_kernel, step_state(state));
}

template <class Queue>
void gradient_norm_slots_on(Queue& queue, const View& slots) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "gradient_norm_slots",
               gradient_norm_slots_kernel, step_state(slots), slots.shape[0]);
}

template <class Queue>
void gradient_norm_join_on(Queue& queue, const View& slots, const View& state) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "gradient_norm_join",
               gradient_norm_join_kernel, step_state(state),
               static_cast<const StepState*>(step_state(slots)), slots.shape[0]);
}

template <class Queue>
void gradient_norm_on(Queue& queue, const View& gradients, const std::vector<StateSpan>& spans,
                      const View& partial, const View& state, int threads) {
  gradient_norm_reset_on(queue, state);
  for_each_run(spans, [&](int64_t begin, int64_t end) {
    sum_of_squares_and_finite_on(queue, gradients.rows(begin, end - begin), partial, state, begin,
                                 threads);
  });
}

template void gradient_norm_reset_on(simt::Queue&, const View&);
template void gradient_norm_slots_on(simt::Queue&, const View&);
template void gradient_norm_join_on(simt::Queue&, const View&, const View&);
template void gradient_norm_on(simt::Queue&, const View&, const std::vector<StateSpan>&,
                               const View&, const View&, int);

}  // namespace snug
