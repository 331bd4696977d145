#include "layers/ops/reward_loss.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "layers/ops/reward_loss_simt.h"
#include "layers/ops/reward_loss_value.h"

namespace snug {
namespace {

// Returns P.
int64_t check_rewards(const View& rewards, const View& margins, const View& state) {
  const int64_t M = rewards.shape.rank() > 0 ? rewards.shape[0] : 0;
  if (M % 2 != 0)
    fail(ErrorCode::shape, "rewards of shape (2P,1), two of every pair", describe(rewards),
         "check the pairs of the batch");
  expect(rewards, "rewards", {{"2P", M}, {"K", 1}});
  expect_dtype(rewards, "rewards", {DType::f32});
  expect(margins, "margins", {{"2P", M}, {"K", 1}});
  expect_dtype(margins, "margins", {DType::f32});
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  return M / 2;
}

void check_margins(Context& ctx, const View& margins) {
  if (!ctx.host_reads()) return;
  for (int64_t p = 0; p < margins.shape[0] / 2; ++p)
    if (const float m = margins.as<float>()[2 * p]; std::isinf(m))
      fail(ErrorCode::data, "margins that are numbers",
           fmt::format("{} of pair {} of {}", m, p, margins.name.view()),
           "check the margins of the data");
}

// Of a pair that is there.
RewardValue value_of_pair(const View& rewards, const View& margins, int64_t p,
                          const RewardLoss& kind) {
  const float* z = rewards.as<float>() + 2 * p;
  return reward_loss_value(double{z[0]}, double{z[1]}, double{margins.as<float>()[2 * p]},
                           kind.center);
}

}  // namespace

void reward_loss_forward(Context& ctx, const View& loss, const View& rewards, const View& margins,
                         const RewardLoss& kind, const View& state) {
  const int64_t P = check_rewards(rewards, margins, state);
  expect(loss, "loss", {{"P", P}});
  expect_dtype(loss, "loss", {DType::f32});
  Op op(ctx, "reward_loss_forward",
        {.flops = 40 * P, .bytes = rewards.bytes() + margins.bytes() + loss.bytes()});
  if (!op.run()) return;
  check_margins(ctx, margins);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      reward_loss_forward_on(queue, loss, rewards, margins, kind, state);
    });
  StepState* step = step_state(state);
  for (int64_t p = 0; p < P; ++p) {
    float& value = loss.as<float>()[p];
    value = 0;
    if (std::isnan(margins.as<float>()[2 * p])) continue;
    value = static_cast<float>(value_of_pair(rewards, margins, p, kind).loss);
    step->loss_sum += double{value};
    ++step->loss_tokens;
  }
}

void reward_loss_backward(Context& ctx, const View& drewards, const View& rewards,
                          const View& margins, const RewardLoss& kind, const View& state) {
  const int64_t P = check_rewards(rewards, margins, state);
  expect(drewards, "drewards", {{"2P", 2 * P}, {"K", 1}});
  dispatch_float(drewards, "drewards", [&](auto tag) {
    using D = decltype(tag);
    Op op(ctx, "reward_loss_backward",
          {.flops = 40 * P, .bytes = rewards.bytes() + margins.bytes() + drewards.bytes()});
    if (!op.run()) return;
    check_margins(ctx, margins);
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        reward_loss_backward_on(queue, drewards, rewards, margins, kind, state);
      });
    const StepState* step = step_state(state);
    const double factor = double{step->inverse_tokens} * double{step->loss_scale};
    D* to = drewards.as<D>();
    for (int64_t p = 0; p < P; ++p) {
      RewardValue v{0, 0, 0};
      if (!std::isnan(margins.as<float>()[2 * p])) v = value_of_pair(rewards, margins, p, kind);
      to[2 * p] = from_f32<D>(static_cast<float>(v.chosen * factor));
      to[2 * p + 1] = from_f32<D>(static_cast<float>(v.rejected * factor));
    }
  });
}

}  // namespace snug
