#include "engine/simt/simt.h"
#include "optim/clip_simt.h"
#include "optim/span_runs.h"

namespace snug {
namespace {

// One thread each.
__global__ void gradient_norm_reset_kernel(StepState* state) {
  if (simt::thread() > 0) return;
  state->grad_square_sum = 0;
  state->found_inf = 0;
  state->first_bad_element = -1;
}

__global__ void clip_kernel(StepState* state, double max_grad_norm) {
  if (simt::thread() > 0) return;
  double factor = 1.0;
  if (max_grad_norm > 0 && !state->found_inf) {
    const double ratio = max_grad_norm / (::sqrt(state->grad_square_sum) + 1e-6);
    factor = ratio < 1.0 ? ratio : 1.0;
  }
  state->clip_factor = static_cast<float>(factor);
}

}  // namespace

template <class Queue>
void gradient_norm_on(Queue& queue, const View& gradients, const std::vector<StateSpan>& spans,
                      const View& partial, const View& state, int threads) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "gradient_norm_reset",
               gradient_norm_reset_kernel, step_state(state));
  for_each_run(spans, [&](int64_t begin, int64_t end) {
    sum_of_squares_and_finite_on(queue, gradients.rows(begin, end - begin), partial, state, begin,
                                 threads);
  });
}

template <class Queue>
void clip_on(Queue& queue, const View& state, double max_grad_norm) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "clip", clip_kernel, step_state(state),
               max_grad_norm);
}

template void gradient_norm_on(simt::Queue&, const View&, const std::vector<StateSpan>&,
                               const View&, const View&, int);
template void clip_on(simt::Queue&, const View&, double);

}  // namespace snug
