#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"
#include "optim/checks.h"
#include "optim/clip_simt.h"

namespace snug {
namespace {

void expect_state(const View& state) {
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
}

}  // namespace

void clip(Context& ctx, const View& state, double max_grad_norm) {
  check_at_least_zero("max_grad_norm", max_grad_norm, "max_grad_norm=1.0, or 0 for no clipping");
  expect_state(state);
  Op op(ctx, "clip", {.flops = 4, .bytes = 0});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { clip_on(queue, state, max_grad_norm); });
  StepState& s = *step_state(state);
  const bool on = max_grad_norm > 0 && !s.found_inf;
  s.clip_factor =
      on ? static_cast<float>(std::min(1.0, max_grad_norm / (gradient_norm_of(s) + 1e-6))) : 1.0f;
}

}  // namespace snug
