#include "layers/ops/layernorm.h"

#include <immintrin.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/row_room.h"
#include "layers/ops/layernorm_rows.h"
#include "layers/ops/layernorm_simt.h"
#include "layers/ops/residual_rows.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

int64_t check_rows(const View& x, const View& mean, const View& rstd, const View& weight) {
  if (x.shape.rank() != 2)
    fail(ErrorCode::shape, "x of shape (N,C)", describe(x), "reshape it to rows and columns");
  expect(mean, "mean", {{"N", x.shape[0]}});
  expect(rstd, "rstd", {{"N", x.shape[0]}});
  expect_dtype(mean, "mean", {DType::f32});
  expect_dtype(rstd, "rstd", {DType::f32});
  expect(weight, "weight", {{"C", x.shape[1]}});
  return x.shape[1];
}

}  // namespace

void check_layernorm(const View& y, const View& mean, const View& rstd, const View& x,
                     const View& weight, const View& bias) {
  const int64_t c = check_rows(x, mean, rstd, weight);
  expect(y, "y", {{"N", x.shape[0]}, {"C", c}});
  expect_dtype(y, "y", {x.dtype});
  if (!bias.defined()) return;
  expect(bias, "bias", {{"C", c}});
  expect_dtype(bias, "bias", {weight.dtype});
}

void layernorm_forward(Context& ctx, const View& y, const View& mean, const View& rstd,
                       const View& x, const View& weight, const View& bias, float eps) {
  check_layernorm(y, mean, rstd, x, weight, bias);
  const int64_t n = x.shape[0], c = x.shape[1];
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    Op op(ctx, "layernorm_forward", {.flops = 8 * n * c, .bytes = x.bytes() + y.bytes() + 8 * n});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        layernorm_forward_on(queue, y, mean, rstd, x, weight, bias, eps);
      });
    const W* shift = bias.defined() ? bias.as<W>() : nullptr;
    const bool past_caches = y.data != x.data && goes_past_caches(y);
    const auto loops = norm_loops<T, W>();
    parallel_chunks(ctx.threads(), n, row_grain(c), [&](int64_t begin, int64_t end) {
      loops.forward(y.as<T>() + begin * c, mean.as<float>() + begin, rstd.as<float>() + begin,
                    x.as<T>() + begin * c, weight.as<W>(), shift, end - begin, c, eps, past_caches);
      if (past_caches) _mm_sfence();
    });
  });
}

void layernorm_backward(Context& ctx, const View& dx, bool add_dx, const GradView& dweight,
                        const GradView& dbias, const View& dy, const View& x, const View& weight,
                        const View& mean, const View& rstd, const DroppedCopy& dropped) {
  const int64_t c = check_rows(x, mean, rstd, weight), n = x.shape[0];
  for (const auto& [view, argument] : {std::pair{&dx, "dx"}, std::pair{&dy, "dy"}}) {
    expect(*view, argument, {{"N", n}, {"C", c}});
    expect_dtype(*view, argument, {x.dtype});
  }
  for (const auto& [view, argument] :
       {std::pair{&dweight.view, "dweight"}, std::pair{&dbias.view, "dbias"}}) {
    if (!view->defined()) continue;
    expect(*view, argument, {{"C", c}});
    expect_gradient_dtype(ctx, *view, argument);
  }
  const bool want_copy = dropped.to.defined();
  if (want_copy)
    check_dropout(dropped.to, "dropped", dx, "dx", dropped.B, dropped.T, dropped.dropout,
                  dropped.state);
  const bool want_weight = dweight.view.defined(), want_bias = dbias.view.defined();
  const RowSplit split(n);
  static const Name kPartial("layernorm_backward.partial");
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    Tensor partial;
    if (want_weight || want_bias)
      partial = ctx.tensor(
          kPartial, {ctx.by_kernels() ? layernorm_backward_chunks(n) : most_row_chunks(n), 2, c},
          DType::f32, Category::workspace);
    Op op(ctx, want_copy ? "layernorm_dropout_backward" : "layernorm_backward",
          {.flops = (want_copy ? 18 : 17) * n * c,
           .bytes = x.bytes() + dy.bytes() + dx.bytes() * (add_dx ? 2 : 1) +
                    (want_copy ? dx.bytes() : 0) + 8 * n});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        layernorm_backward_on(queue, dx, add_dx, dweight, dbias, partial, dy, x, weight, mean, rstd,
                              dropped);
      });
    const DropoutMask mask = want_copy && dropped.dropout.p > 0.0f
                                 ? DropoutMask(dropped.dropout, *step_state(dropped.state))
                                 : DropoutMask({}, {});
    float* sums = partial.defined() ? partial.view().as<float>() : nullptr;
    const auto loops = norm_loops<T, W>();
    // A copy is made of rows that are still near.
    const int64_t near_rows = want_copy ? row_grain(c) : std::max<int64_t>(1, split.rows);
    const bool past_caches = !add_dx && !want_copy && dx.data != dy.data && goes_past_caches(dx);
    parallel_for(ctx.threads(), split.chunks, [&](int64_t k) {
      float* weight_sum = want_weight ? sums + 2 * k * c : nullptr;
      float* bias_sum = want_bias ? sums + (2 * k + 1) * c : nullptr;
      if (weight_sum) std::fill(weight_sum, weight_sum + c, 0.0f);
      if (bias_sum) std::fill(bias_sum, bias_sum + c, 0.0f);
      const int64_t end = std::min(n, (k + 1) * split.rows);
      for (int64_t row = k * split.rows; row < end; row += near_rows) {
        const int64_t rows = std::min(near_rows, end - row);
        loops.backward(dx.as<T>() + row * c, add_dx, weight_sum, bias_sum, dy.as<T>() + row * c,
                       x.as<T>() + row * c, weight.as<W>(), mean.as<float>() + row,
                       rstd.as<float>() + row, rows, c, past_caches);
        for (int64_t i = row; want_copy && i < row + rows; ++i)
          drop_row(dropped.to.as<T>() + i * c, dx.as<T>() + i * c, mask, i / dropped.T,
                   i % dropped.T, c);
      }
      if (past_caches) _mm_sfence();
    });
    const auto finish = [&](const GradView& out, const float* first, const char* argument) {
      dispatch_gradient(out.view, argument, [&](auto gradient) {
        auto* to = out.view.as<decltype(gradient)>();
        parallel_chunks(ctx.threads(), c, 256, [&, to](int64_t begin, int64_t end) {
          add_chunks(to, out.add, first, split.chunks, 2 * c, begin, end);
        });
      });
    };
    if (want_weight) finish(dweight, sums, "dweight");
    if (want_bias) finish(dbias, sums + c, "dbias");
  });
}

}  // namespace snug
