#include "layers/ops/gated_activation.h"

#include <immintrin.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/activation_dispatch.h"
#include "layers/ops/gated_activation_simt.h"
#include "layers/ops/row_loops.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

void check(const View& gate_up, const View& half, const char* argument) {
  if (gate_up.shape.rank() != 2 || gate_up.shape[1] % 2 != 0)
    fail(ErrorCode::shape, "gate_up of shape (N,2F)", describe(gate_up),
         "lay gate and up beside each other in a row");
  expect(half, argument, {{"N", gate_up.shape[0]}, {"F", gate_up.shape[1] / 2}});
  expect_dtype(half, argument, {gate_up.dtype});
}

}  // namespace

void gated_activation_forward(Context& ctx, const View& y, const View& gate_up, Activation kind) {
  check(gate_up, y, "y");
  dispatch_float(gate_up, "gate_up", [&](auto tag) {
    using T = decltype(tag);
    const GatedLoops<T> loops = gated_loops<T>(kind);
    Op op(ctx, "gated_activation_forward",
          {.flops = (flops_of(kind) + 1) * y.elements(), .bytes = gate_up.bytes() + y.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx,
                      [&](auto& queue) { gated_activation_forward_on(queue, y, gate_up, kind); });
    const int64_t n = y.shape[0], f = y.shape[1];
    T* to = y.as<T>();
    const T* from = gate_up.as<T>();
    const bool past_caches = goes_past_caches(y);
    parallel_chunks(ctx.threads(), n, row_grain(f), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        loops.values(to + row * f, from + row * 2 * f, from + row * 2 * f + f, f, past_caches);
      if (past_caches) _mm_sfence();
    });
  });
}

void gated_activation_backward(Context& ctx, const View& dgate_up, const View& dy,
                               const View& gate_up, Activation kind) {
  check(gate_up, dy, "dy");
  expect(dgate_up, "dgate_up", {{"N", gate_up.shape[0]}, {"2F", gate_up.shape[1]}});
  expect_dtype(dgate_up, "dgate_up", {gate_up.dtype});
  dispatch_float(gate_up, "gate_up", [&](auto tag) {
    using T = decltype(tag);
    const GatedLoops<T> loops = gated_loops<T>(kind);
    Op op(ctx, "gated_activation_backward",
          {.flops = (flops_of(kind) + 9) * dy.elements(),
           .bytes = gate_up.bytes() + dy.bytes() + dgate_up.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        gated_activation_backward_on(queue, dgate_up, dy, gate_up, kind);
      });
    const int64_t n = dy.shape[0], f = dy.shape[1];
    T* to = dgate_up.as<T>();
    const T *dfrom = dy.as<T>(), *from = gate_up.as<T>();
    const bool past_caches = to != from && goes_past_caches(dgate_up, 2);
    parallel_chunks(ctx.threads(), n, row_grain(f), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t gate = row * 2 * f, up = gate + f;
        loops.slopes(to + gate, to + up, dfrom + row * f, from + gate, from + up, f, past_caches);
      }
      if (past_caches) _mm_sfence();
    });
  });
}

}  // namespace snug
