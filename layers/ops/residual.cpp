#include "layers/ops/residual.h"

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/residual_rows.h"
#include "layers/ops/residual_simt.h"

namespace snug {
namespace {

constexpr int64_t kGrain = 32 * 1024;  // elements a task of the plain sum

}  // namespace

void residual_forward(Context& ctx, const View& y, const View& x, const View& branch, int64_t B,
                      int64_t T, const DropoutSpec& spec, const View& state) {
  check_dropout(y, "y", x, "x", B, T, spec, state);
  const int64_t n = B * T, c = x.shape[1];
  expect(branch, "branch", {{"N=B*T", n}, {"C", c}});
  expect_dtype(branch, "branch", {x.dtype});
  dispatch_float(x, "x", [&](auto tag) {
    using V = decltype(tag);
    Op op(ctx, spec.p > 0.0f ? "dropout_residual_forward" : "residual_forward",
          {.flops = (spec.p > 0.0f ? 2 : 1) * n * c, .bytes = 3 * x.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        residual_forward_on(queue, y, {x, B, T, spec, state}, branch);
      });
    V* to = y.as<V>();
    const V* from = x.as<V>();
    const V* add = branch.as<V>();
    if (spec.p == 0.0f) {
      parallel_chunks(ctx.threads(), n * c, kGrain, [=](int64_t begin, int64_t end) {
        add_row(to + begin, from + begin, add + begin, end - begin);
      });
      return;
    }
    const DropoutMask mask(spec, *step_state(state));
    parallel_chunks(ctx.threads(), n, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        add_dropped_row(to + row * c, from + row * c, add + row * c, mask, row / T, row % T, c);
    });
  });
}

}  // namespace snug
