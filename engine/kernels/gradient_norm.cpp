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

namespace {

// f(begin, end) of every op.
template <class F>
void for_each_op(std::span<const StateSpan> spans, NormOps ops, F&& f) {
  if (ops == NormOps::of_runs) return for_each_run(spans, f);
  for (const StateSpan& s : spans) f(s.offset, s.offset + s.elements);
}

}  // namespace

void gradient_norm_add(Context& ctx, const View& gradients, int64_t first,
                       std::span<const StateSpan> spans, const View& state, NormOps ops) {
  for_each_op(spans, ops, [&](int64_t begin, int64_t end) {
    sum_of_squares_and_finite(ctx, gradients.rows(begin - first, end - begin), state, begin);
  });
}

void gradient_norm(Context& ctx, const View& gradients, const std::vector<StateSpan>& spans,
                   const View& state) {
  expect(gradients, "gradients", {{"elements", gradients.elements()}});
  gradient_norm_reset(ctx, state);
  gradient_norm_add(ctx, gradients, 0, spans, state);
}

int64_t gradient_norm_ops(std::span<const StateSpan> spans, NormOps ops) {
  int64_t count = 0;
  for_each_op(spans, ops, [&](int64_t, int64_t) { ++count; });
  return count;
}

// Sums of slots are of a loss scale of 1: the real one is applied where they are joined.
void gradient_norm_slots(Context& ctx, const View& gradients, int64_t first,
                         std::span<const StateSpan> spans, const View& slots, NormOps ops) {
  const int64_t runs = gradient_norm_ops(spans, ops), bytes = step_state_shape()[0];
  expect(slots, "slots", {{"runs", runs}, {"bytes", bytes}});
  {
    Op op(ctx, "gradient_norm_slots", {.bytes = slots.bytes()});
    if (op.run() && ctx.by_kernels()) {
      on_queue(ctx, [&](auto& queue) { gradient_norm_slots_on(queue, slots); });
    } else if (op.run()) {
      for (int64_t k = 0; k < runs; ++k) {
        StepState& s = step_state(slots)[k];
        s.loss_scale = 1;
        s.grad_square_sum = 0;
        s.found_inf = 0;
        s.first_bad_element = -1;
      }
    }
  }
  int64_t k = 0;
  for_each_op(spans, ops, [&](int64_t begin, int64_t end) {
    sum_of_squares_and_finite(ctx, gradients.rows(begin - first, end - begin),
                              slots.rows(k++, 1).reshaped(step_state_shape()), begin);
  });
}

void gradient_norm_join(Context& ctx, const View& slots, const View& state) {
  expect(slots, "slots", {{"runs", slots.shape[0]}, {"bytes", step_state_shape()[0]}});
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  Op op(ctx, "gradient_norm_join", {.flops = 2 * slots.shape[0], .bytes = slots.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { gradient_norm_join_on(queue, slots, state); });
  StepState& s = *step_state(state);
  const double unscale = 1.0 / static_cast<double>(s.loss_scale);
  for (int64_t k = 0; k < slots.shape[0]; ++k) {
    const StepState& slot = step_state(slots)[k];
    s.grad_square_sum += slot.grad_square_sum * (unscale * unscale);
    if (slot.found_inf == 0) continue;
    s.found_inf = 1;
    if (s.first_bad_element < 0 || slot.first_bad_element < s.first_bad_element)
      s.first_bad_element = slot.first_bad_element;
  }
}

double gradient_norm_of(const StepState& state) {
  return std::sqrt(state.grad_square_sum);
}

}  // namespace snug
