#include "layers/ops/column_fold.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/column_fold_simt.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

void check_columns(const View& wide, const View& narrow, FoldedColumns f) {
  for (const View* v : {&wide, &narrow})
    if (v->shape.rank() != 2)
      fail(ErrorCode::shape, "matrices (N,C) and (N,r)", describe(*v),
           "reshape it to rows and columns");
  const int64_t r = narrow.shape[1];
  if (wide.shape[0] != narrow.shape[0] || f.first < 0 || f.width < 1 || r < 1 ||
      (f.wrap && r > 2 * f.width) || f.first + f.width > wide.shape[1])
    fail(ErrorCode::shape,
         fmt::format("as many rows, and columns {} to {} of {}{}", f.first, f.first + f.width,
                     describe(wide), f.wrap ? ", at least half of those of the other" : ""),
         describe(narrow), "check that the adapter and the model belong together");
  if (wide.dtype != narrow.dtype)
    fail(ErrorCode::unsupported,
         fmt::format("columns and what they are folded onto of one dtype, {}",
                     to_string(wide.dtype)),
         describe(narrow), "cast it first");
}

}  // namespace

void column_fold(Context& ctx, const View& u, const View& x, FoldedColumns f) {
  check_columns(x, u, f);
  expect_float(x, "x");
  const int64_t N = x.shape[0], r = u.shape[1], stride = x.shape[1], again = f.again(r);
  Op op(ctx, "column_fold",
        {.flops = N * (f.width + again), .bytes = u.bytes() + N * f.width * size_of(x.dtype)});
  if (!op.run()) return;
  if (ctx.by_kernels()) return on_queue(ctx, [&](auto& queue) { column_fold_on(queue, u, x, f); });
  dispatch_float(x, "x", [&](auto of) {
    using T = decltype(of);
    const T* const from = x.as<const T>() + f.first;
    T* const to = u.as<T>();
    parallel_chunks(ctx.threads(), N, row_grain(f.width), [=](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        for (int64_t j = 0; j < r; ++j) {
          float sum = 0;
          for (int64_t c = j; c < f.width; c += r) sum += to_f32(from[n * stride + c]);
          if (j >= r - again) sum += to_f32(from[n * stride + j - (r - again)]);
          to[n * r + j] = from_f32<T>(sum);
        }
    });
  });
}

void column_lay(Context& ctx, const GradView& y, const View& v, FoldedColumns f) {
  check_columns(y.view, v, f);
  expect_float(v, "v");
  const int64_t N = v.shape[0], r = v.shape[1], stride = y.view.shape[1], again = f.again(r);
  Op op(ctx, "column_lay",
        {.flops = N * (f.width + again),
         .bytes = v.bytes() + (y.add ? 2 : 1) * N * f.width * size_of(v.dtype)});
  if (!op.run()) return;
  if (ctx.by_kernels()) return on_queue(ctx, [&](auto& queue) { column_lay_on(queue, y, v, f); });
  dispatch_float(v, "v", [&](auto of) {
    using T = decltype(of);
    const T* const from = v.as<const T>();
    T* const to = y.view.as<T>() + f.first;
    parallel_chunks(ctx.threads(), N, row_grain(f.width), [=](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        for (int64_t c = 0; c < f.width; ++c) {
          float value = to_f32(from[n * r + c % r]);
          if (c < again) value += to_f32(from[n * r + c + r - again]);
          T& out = to[n * stride + c];
          out = from_f32<T>(y.add ? to_f32(out) + value : value);
        }
    });
  });
}

}  // namespace snug
