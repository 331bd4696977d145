#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/kernels.h"
#include "optim/checks.h"
#include "optim/clip_simt.h"
#include "optim/span_runs.h"

namespace snug {
namespace {

void expect_state(const View& state) {
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
}

}  // namespace

void gradient_norm_reset(Context& ctx, const View& state) {
  expect_state(state);
  Op op(ctx, "gradient_norm_reset", {});
  if (!op.run()) return;
  StepState& s = *step_state(state);
  require(!ctx.host_reads() || s.loss_scale > 0, "a loss scale above 0 (1 without loss scaling)");
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { gradient_norm_reset_on(queue, state); });
  s.grad_square_sum = 0;
  s.found_inf = 0;
  s.first_bad_element = -1;
}

void gradient_norm_add(Context& ctx, const View& gradients, int64_t first,
                       std::span<const StateSpan> spans, const View& state) {
  for_each_run(spans, [&](int64_t begin, int64_t end) {
    sum_of_squares_and_finite(ctx, gradients.rows(begin - first, end - begin), state, begin);
  });
}

void gradient_norm(Context& ctx, const View& gradients, const std::vector<StateSpan>& spans,
                   const View& state) {
  expect(gradients, "gradients", {{"elements", gradients.elements()}});
  gradient_norm_reset(ctx, state);
  gradient_norm_add(ctx, gradients, 0, spans, state);
}

double gradient_norm_of(const StepState& state) {
  return std::sqrt(state.grad_square_sum);
}

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
