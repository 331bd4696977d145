#include "engine/kernels/gradient_norm.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/kernels/gradient_norm_simt.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/kernels.h"
#include "engine/seams/span_runs.h"

namespace snug {

void gradient_norm_reset(Context& ctx, const View& state) {
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
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

}  // namespace snug
