#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/memory/step_state.h"
#include "engine/simt/reduce.h"
#include "layers/ops/reward_loss_simt.h"
#include "layers/ops/reward_loss_value.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

__device__ inline bool no_pair(const float* margins, int64_t p) {
  return margins[2 * p] != margins[2 * p];
}

__device__ inline RewardValue value_of_pair(const float* rewards, const float* margins, int64_t p,
                                            double center) {
  return reward_loss_value(double{rewards[2 * p]}, double{rewards[2 * p + 1]},
                           double{margins[2 * p]}, center);
}

// One block.
__global__ void reward_loss_forward_kernel(float* loss, const float* rewards, const float* margins,
                                           double center, int64_t pairs, StepState* state) {
  double sum = 0;
  int64_t trained = 0;
  for (int64_t p = thread(); p < pairs; p += threads()) {
    const bool none = no_pair(margins, p);
    const float value =
        none ? 0.0f : static_cast<float>(value_of_pair(rewards, margins, p, center).loss);
    loss[p] = value;
    sum += double{value};
    trained += none ? 0 : 1;
  }
  const double total = block_sum(sum);
  const int64_t all = block_sum(trained);
  if (thread() > 0) return;
  state->loss_sum += total;
  state->loss_tokens += all;
}

template <class D>
__global__ void reward_loss_backward_kernel(D* drewards, const float* rewards, const float* margins,
                                            double center, int64_t pairs, const StepState* state) {
  const int64_t p = block() * threads() + thread();
  if (p >= pairs) return;
  const double factor = double{state->inverse_tokens} * double{state->loss_scale};
  RewardValue v{0, 0, 0};
  if (!no_pair(margins, p)) v = value_of_pair(rewards, margins, p, center);
  drewards[2 * p] = from_f32<D>(static_cast<float>(v.chosen * factor));
  drewards[2 * p + 1] = from_f32<D>(static_cast<float>(v.rejected * factor));
}

}  // namespace

template <class Queue>
void reward_loss_forward_on(Queue& queue, const View& loss, const View& rewards,
                            const View& margins, const RewardLoss& kind, const View& state,
                            int threads) {
  launch(queue, {.blocks = 1, .threads = threads}, "reward_loss_forward",
         reward_loss_forward_kernel, loss.as<float>(), rewards.as<const float>(),
         margins.as<const float>(), kind.center, loss.shape[0], step_state(state));
}

template <class Queue>
void reward_loss_backward_on(Queue& queue, const View& drewards, const View& rewards,
                             const View& margins, const RewardLoss& kind, const View& state,
                             int threads) {
  const int64_t pairs = rewards.shape[0] / 2;
  dispatch_float(drewards, "drewards", [&](auto tag) {
    using D = decltype(tag);
    launch(queue, {.blocks = ceil_div(pairs, int64_t{threads}), .threads = threads},
           "reward_loss_backward", reward_loss_backward_kernel<D>, drewards.as<D>(),
           rewards.as<const float>(), margins.as<const float>(), kind.center, pairs,
           static_cast<const StepState*>(step_state(state)));
  });
}

template void reward_loss_forward_on(simt::Queue&, const View&, const View&, const View&,
                                     const RewardLoss&, const View&, int);
template void reward_loss_backward_on(simt::Queue&, const View&, const View&, const View&,
                                      const RewardLoss&, const View&, int);

}  // namespace snug
