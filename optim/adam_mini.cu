#include "engine/core/units.h"
#include "engine/memory/step_state.h"
#include "engine/simt/simt.h"
#include "optim/adam_mini_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A block of threads works on one of squares, its threads are the lanes of whole.h.
__global__ void adam_mini_squares_kernel(const StepState* state, AdamMiniNumbers numbers, int64_t n,
                                         const float* gradient, float* squares) {
  if (state->found_inf) return;  // all blocks, before any barrier
  SHARED_ARRAY(double, lanes, kNormLanes);
  const float factor = static_cast<float>(double{state->clip_factor} / double{state->loss_scale});
  double sum = 0;
  for (int64_t i = thread(); i < n; i += kNormLanes) {
    const float g = gradient[block() * n + i] * factor;
    sum += double{g} * double{g};
  }
  lanes[thread()] = sum;
  for (int half = kNormLanes / 2; half > 0; half /= 2) {
    sync_threads();
    if (thread() < half) lanes[thread()] = lanes[thread()] + lanes[thread() + half];
  }
  sync_threads();
  if (thread() != 0) return;
  const float mean = static_cast<float>(lanes[0] / static_cast<double>(n));
  const float before = state->updates == 0 ? 0.0f : squares[block()];
  squares[block()] = numbers.beta2 * before + numbers.one_minus_beta2 * mean;
}

__global__ void adam_mini_direction_kernel(const StepState* state, AdamMiniNumbers numbers,
                                           int64_t length, int64_t from, int64_t n,
                                           const float* squares, const float* gradient,
                                           float* momentum, float* to) {
  if (state->found_inf) return;     // all blocks, before any barrier
  SHARED_ARRAY(float, of_step, 2);  // some devices divide in double at a 64th of the rate
  if (thread() == 0) {
    of_step[0] = static_cast<float>(double{state->clip_factor} / double{state->loss_scale});
    of_step[1] = static_cast<float>(1.0 / ::sqrt(double{state->bias_correction2}));
  }
  sync_threads();
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const float factor = of_step[0], scale = of_step[1];
  const float g = gradient[i] * factor, before = state->updates == 0 ? 0.0f : momentum[i];
  const float m = before + numbers.one_minus_beta1 * (g - before);
  momentum[i] = m;
  to[i] = m / (::sqrtf(squares[(from + i) / length]) * scale + numbers.epsilon);
}

}  // namespace

template <class Queue>
void adam_mini_squares_on(Queue& queue, const AdamMiniNumbers& numbers, int64_t block,
                          const View& squares, const View& gradient, const View& state) {
  launch(queue, {.blocks = squares.elements(), .threads = kNormLanes}, "adam_mini_squares",
         adam_mini_squares_kernel, static_cast<const StepState*>(step_state(state)), numbers, block,
         gradient.as<const float>(), squares.as<float>());
}

template <class Queue>
void adam_mini_direction_on(Queue& queue, const AdamMiniNumbers& numbers, int64_t block,
                            int64_t from, const View& to, const View& momentum, const View& squares,
                            const View& gradient, const View& state) {
  constexpr int kThreads = 256;
  const int64_t n = to.elements();
  launch(queue, {.blocks = ceil_div(n, int64_t{kThreads}), .threads = kThreads},
         "adam_mini_direction", adam_mini_direction_kernel,
         static_cast<const StepState*>(step_state(state)), numbers, block, from, n,
         squares.as<const float>(), gradient.as<const float>(), momentum.as<float>(),
         to.as<float>());
}

template void adam_mini_squares_on(simt::Queue&, const AdamMiniNumbers&, int64_t, const View&,
                                   const View&, const View&);
template void adam_mini_direction_on(simt::Queue&, const AdamMiniNumbers&, int64_t, int64_t,
                                     const View&, const View&, const View&, const View&,
                                     const View&);

}  // namespace snug
