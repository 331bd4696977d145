#include "engine/simt/simt.h"
#include "optim/clip_simt.h"

namespace snug {
namespace {

// One thread each.
__global__ void clip_kernel(StepState* state, double max_grad_norm) {
  if (simt::thread() > 0) return;
  double factor = 1.0;
  if (max_grad_norm > 0 && !state->found_inf) {
    const double ratio = max_grad_norm / (::sqrt(state->grad_square_sum) + 1e-6);
    factor = ratio < 1.0 ? ratio : 1.0;
  }
  state->clip_factor = static_cast<float>(factor);
}

__global__ void update_loss_scale_kernel(StepState* state, double backoff, double growth,
                                         double least, int64_t interval) {
  if (simt::thread() > 0) return;
  const double scale = double{state->loss_scale};
  if (state->found_inf) {
    const double lower = scale * backoff;
    state->loss_scale = static_cast<float>(lower > least ? lower : least);
    state->growth_tracker = 0;
  } else if (++state->growth_tracker >= interval) {
    const auto grown = static_cast<float>(scale * growth);
    if (grown <= 3.402823466e38f) state->loss_scale = grown;
    state->growth_tracker = 0;
  }
}

}  // namespace

template <class Queue>
void clip_on(Queue& queue, const View& state, double max_grad_norm) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "clip", clip_kernel, step_state(state),
               max_grad_norm);
}

template <class Queue>
void update_loss_scale_on(Queue& queue, const View& state, const LossScaling& config) {
  simt::launch(queue, {.blocks = 1, .threads = simt::kWarp}, "update_loss_scale",
               update_loss_scale_kernel, step_state(state), config.backoff_factor,
               config.growth_factor, config.min_scale, int64_t{config.growth_interval});
}

template void update_loss_scale_on(simt::Queue&, const View&, const LossScaling&);
template void clip_on(simt::Queue&, const View&, double);

}  // namespace snug
