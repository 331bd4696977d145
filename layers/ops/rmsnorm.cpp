#include "layers/ops/rmsnorm.h"

#include <fmt/format.h>
#include <immintrin.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/row_room.h"
#include "layers/ops/layernorm_dispatch.h"
#include "layers/ops/rmsnorm_simt.h"
#include "layers/ops/row_loops.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

// Runs of `count` rows of c values, `stride` values from one to the next. Rows that lie behind one
// another are one run of all of them.
struct Groups {
  int64_t number, stride, first, count, c;
};

Groups check(const View& x, const View& weight, const View& rstd, const HeadRows& heads) {
  if (x.shape.rank() != 2)
    fail(ErrorCode::shape, "x of shape (N,C)", describe(x), "reshape it to rows and columns");
  const int64_t n = x.shape[0];
  const bool part = heads.columns > 0;
  if (part && (heads.group != 1 || heads.column < 0 || heads.column + heads.columns > x.shape[1]))
    fail(ErrorCode::shape, "columns inside the rows of x",
         fmt::format("{} and columns {} to {}", describe(x), heads.column,
                     heads.column + heads.columns - 1),
         "check the numbers of heads in the model's config");
  if (heads.group < 1 || n % heads.group != 0 || heads.first < 0 || heads.count < 0 ||
      heads.first + heads.count > heads.group)
    fail(ErrorCode::shape, "rows of x in whole groups, and heads inside a group",
         fmt::format("{} and heads {} to {} of {}", describe(x), heads.first,
                     heads.first + heads.count - 1, heads.group),
         "check the numbers of heads in the model's config");
  expect(rstd, "rstd", {{"M", heads.of(n)}});
  expect_dtype(rstd, "rstd", {DType::f32});
  const int64_t c = part ? heads.columns : x.shape[1];
  expect(weight, "weight", {{"C", c}});
  if (part) return {n, x.shape[1], heads.column, 1, c};
  if (heads.count == heads.group) return {n, c, 0, 1, c};
  return {n / heads.group, heads.group * c, heads.first * c, heads.count, c};
}

void check_like(const View& x, const View& other, const char* argument) {
  expect(other, argument, {{"N", x.shape[0]}, {"C", x.shape[1]}});
  expect_dtype(other, argument, {x.dtype});
}

// f(element of x, row of rstd, rows) for the rows of the groups [begin, end).
template <class F>
void each_run(const Groups& g, int64_t begin, int64_t end, F&& f) {
  if (g.stride == g.c) return f(begin * g.c, begin, end - begin);
  for (int64_t i = begin; i < end; ++i) f(i * g.stride + g.first, i * g.count, g.count);
}

}  // namespace

void rmsnorm_forward(Context& ctx, const View& y, const View& rstd, const View& x,
                     const View& weight, float eps, bool unit_offset, const HeadRows& heads) {
  const Groups groups = check(x, weight, rstd, heads);
  check_like(x, y, "y");
  const int64_t m = rstd.shape[0], c = groups.c;
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    Op op(ctx, "rmsnorm_forward",
          {.flops = 4 * m * c, .bytes = 2 * m * c * size_of(x.dtype) + 4 * m});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        rmsnorm_forward_on(queue, y, rstd, x, weight, eps, unit_offset, heads);
      });
    const bool past_caches = y.data != x.data && goes_past_caches(y);
    const auto loops = rms_loops<T, W>();
    parallel_chunks(ctx.threads(), groups.number, row_grain(c * groups.count),
                    [&](int64_t begin, int64_t end) {
                      each_run(groups, begin, end, [&](int64_t at, int64_t r, int64_t rows) {
                        loops.forward(y.as<T>() + at, rstd.as<float>() + r, x.as<T>() + at,
                                      weight.as<W>(), unit_offset, rows, c, eps, past_caches);
                      });
                      if (past_caches) _mm_sfence();
                    });
  });
}

void rmsnorm_backward(Context& ctx, const View& dx, bool add_dx, const GradView& dweight,
                      const View& dy, const View& x, const View& weight, const View& rstd,
                      bool unit_offset, const HeadRows& heads) {
  const Groups groups = check(x, weight, rstd, heads);
  check_like(x, dx, "dx");
  check_like(x, dy, "dy");
  const int64_t m = rstd.shape[0], c = groups.c;
  const bool want_weight = dweight.view.defined();
  if (want_weight) {
    expect(dweight.view, "dweight", {{"C", c}});
    expect_gradient_dtype(ctx, dweight.view, "dweight");
  }
  const RowSplit split(groups.number);
  static const Name kPartial("rmsnorm_backward.partial");
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    Tensor partial;
    if (want_weight)
      partial = ctx.tensor(
          kPartial,
          {ctx.by_kernels() ? rmsnorm_backward_chunks(m) : most_row_chunks(groups.number), c},
          DType::f32, Category::workspace);
    Op op(ctx, "rmsnorm_backward",
          {.flops = (want_weight ? 12 : 10) * m * c,
           .bytes = (add_dx ? 4 : 3) * m * c * size_of(x.dtype) + 4 * m});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        rmsnorm_backward_on(queue, dx, add_dx, dweight, partial, dy, x, weight, rstd, unit_offset,
                            heads);
      });
    float* sums = partial.defined() ? partial.view().as<float>() : nullptr;
    const auto loops = rms_loops<T, W>();
    const bool past_caches = !add_dx && dx.data != dy.data && goes_past_caches(dx);
    parallel_for(ctx.threads(), split.chunks, [&](int64_t k) {
      float* sum = sums ? sums + k * c : nullptr;
      if (sum) std::fill(sum, sum + c, 0.0f);
      const int64_t end = std::min(groups.number, (k + 1) * split.rows);
      each_run(groups, k * split.rows, end, [&](int64_t at, int64_t r, int64_t rows) {
        loops.backward(dx.as<T>() + at, add_dx, sum, dy.as<T>() + at, x.as<T>() + at,
                       weight.as<W>(), unit_offset, rstd.as<float>() + r, rows, c, past_caches);
      });
      if (past_caches) _mm_sfence();
    });
    if (!want_weight) return;
    dispatch_gradient(dweight.view, "dweight", [&](auto gradient) {
      auto* to = dweight.view.as<decltype(gradient)>();
      parallel_chunks(ctx.threads(), c, 256, [&, to](int64_t begin, int64_t end) {
        add_chunks(to, dweight.add, sums, split.chunks, c, begin, end);
      });
    });
  });
}

}  // namespace snug
