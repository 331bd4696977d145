#include "layers/ops/dropout.h"

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/dropout_simt.h"
#include "layers/ops/residual_rows.h"

namespace snug {

void check_dropout(const View& y, const char* y_name, const View& x, const char* x_name, int64_t B,
                   int64_t T, const DropoutSpec& spec, const View& state) {
  if (!(spec.p >= 0.0f && spec.p < 1.0f))
    fail(ErrorCode::usage, "a dropout probability of [0,1)", "p = " + std::to_string(spec.p),
         "correct the dropout rates of the model's config");
  if (x.shape.rank() != 2)
    fail(ErrorCode::shape, std::string(x_name) + " of shape (N,C)", describe(x),
         "reshape it to rows and columns");
  expect(x, x_name, {{"N=B*T", B * T}, {"C", x.shape[1]}});
  expect(y, y_name, {{"N=B*T", B * T}, {"C", x.shape[1]}});
  expect_dtype(y, y_name, {x.dtype});
  if (spec.p > 0.0f) expect(state, "state", {{"bytes", step_state_shape()[0]}});
}

namespace {

// Forward and backward are one function: the mask does not depend on the data.
void apply(Context& ctx, const char* name, const View& y, const char* y_name, const View& x,
           const char* x_name, int64_t B, int64_t T, const DropoutSpec& spec, const View& state) {
  check_dropout(y, y_name, x, x_name, B, T, spec, state);
  if (spec.p == 0.0f)
    fail(ErrorCode::usage, std::string(name) + " with a probability above 0", "p = 0",
         "skip the op where there is nothing to drop");
  const int64_t c = x.shape[1];
  dispatch_float(x, x_name, [&](auto tag) {
    using V = decltype(tag);
    Op op(ctx, name, {.flops = x.elements(), .bytes = x.bytes() + y.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx,
                      [&](auto& queue) { dropout_forward_on(queue, y, x, B, T, spec, state); });
    const DropoutMask mask(spec, *step_state(state));
    parallel_chunks(ctx.threads(), B * T, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        drop_row(y.as<V>() + row * c, x.as<V>() + row * c, mask, row / T, row % T, c);
    });
  });
}

}  // namespace

void dropout_forward(Context& ctx, const View& y, const View& x, int64_t B, int64_t T,
                     const DropoutSpec& spec, const View& state) {
  apply(ctx, "dropout_forward", y, "y", x, "x", B, T, spec, state);
}

void dropout_backward(Context& ctx, const View& dx, const View& dy, int64_t B, int64_t T,
                      const DropoutSpec& spec, const View& state) {
  apply(ctx, "dropout_backward", dx, "dx", dy, "dy", B, T, spec, state);
}

}  // namespace snug
