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

}  // namespace

template <class Queue>
void gradient_norm_reset_on(Queue& queue, const View& state) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "gradient_norm_reset",
               gradient_norm_reset_kernel, step_state(state));
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
template void gradient_norm_on(simt::Queue&, const View&, const std::vector<StateSpan>&,
                               const View&, const View&, int);

}  // namespace snug
