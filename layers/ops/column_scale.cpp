#include "layers/ops/column_scale.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/row_chunks.h"
#include "engine/kernels/row_room.h"
#include "engine/kernels/row_split.h"
#include "layers/ops/column_scale_simt.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

struct ScaledRows {
  int64_t N, C;
};

ScaledRows rows_of(const View& x, const char* argument) {
  if (x.shape.rank() != 2)
    fail(ErrorCode::shape, std::string(argument) + " of shape (N,C)", describe(x),
         "reshape it to rows and columns");
  return {x.shape[0], x.shape[1]};
}

void expect_same(const View& x, const char* argument, const View& like) {
  expect(x, argument, {{"N", like.shape[0]}, {"C", like.shape[1]}});
  expect_dtype(x, argument, {like.dtype});
}

void expect_columns(const View& x, const char* argument, int64_t C, DType dtype) {
  expect(x, argument, {{"C", C}});
  expect_dtype(x, argument, {dtype});
}

// y = g x + b of n rows.
template <class T>
void scale_rows(T* y, const T* x, const float* g, const T* b, int64_t n, int64_t C) {
  for (int64_t i = 0; i < n; ++i, y += C, x += C) {
    if (b)
      for (int64_t c = 0; c < C; ++c) y[c] = from_f32<T>(g[c] * to_f32(x[c]) + to_f32(b[c]));
    else
      for (int64_t c = 0; c < C; ++c) y[c] = from_f32<T>(g[c] * to_f32(x[c]));
  }
}

template <class T>
void scale_all(Context& ctx, const View& y, const View& x, const View& g, const View& b) {
  const int64_t C = x.shape[1];
  T* const to = y.as<T>();
  const T* const from = x.as<const T>();
  const auto* const factors = g.as<const float>();
  const T* const added = b.defined() ? b.as<const T>() : nullptr;
  parallel_chunks(ctx.threads(), x.shape[0], row_grain(C), [=](int64_t begin, int64_t end) {
    scale_rows(to + begin * C, from + begin * C, factors, added, end - begin, C);
  });
}

}  // namespace

void column_scale_forward(Context& ctx, const View& y, const View& v, const View& g,
                          const View& b) {
  const ScaledRows rows = rows_of(v, "column_scale: v");
  expect_same(y, "column_scale: y", v);
  expect_columns(g, "column_scale: g", rows.C, DType::f32);
  if (b.defined()) expect_columns(b, "column_scale: b", rows.C, v.dtype);
  dispatch_float(v, "column_scale: v", [&](auto tag) {
    Op op(ctx, "column_scale_forward",
          {.flops = (b.defined() ? 2 : 1) * v.elements(), .bytes = v.bytes() + y.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { column_scale_on(queue, y, v, g, b); });
    scale_all<decltype(tag)>(ctx, y, v, g, b);
  });
}

void column_scale_backward(Context& ctx, const View& dv, const View& dg, const View& dy,
                           const View& v, const View& g) {
  const auto [N, C] = rows_of(dy, "column_scale: dy");
  if (dv.defined()) {
    expect_same(dv, "column_scale: dv", dy);
    expect_columns(g, "column_scale: g", C, DType::f32);
  }
  if (dg.defined()) {
    expect_same(v, "column_scale: v", dy);
    expect_columns(dg, "column_scale: dg", C, DType::f32);
  }
  const RowSplit split(N);
  static const Name kPartial("column_scale.partial");
  dispatch_float(dy, "column_scale: dy", [&](auto tag) {
    using T = decltype(tag);
    Tensor partial;
    if (dg.defined())
      partial = ctx.tensor(kPartial, {ctx.by_kernels() ? row_chunks(N) : most_row_chunks(N), C},
                           DType::f32, Category::workspace);
    Op op(ctx, "column_scale_backward",
          {.flops = (dg.defined() ? 2 : 0) * dy.elements() + (dv.defined() ? dy.elements() : 0),
           .bytes = dy.bytes() + (dg.defined() ? v.bytes() : 0) + (dv.defined() ? dv.bytes() : 0)});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        if (dg.defined()) column_scale_sum_on(queue, dg, partial, dy, v);
        if (dv.defined()) column_scale_on(queue, dv, dy, g, View());
      });
    if (dg.defined()) {
      const T *const gradient = dy.as<const T>(), *const value = v.as<const T>();
      auto* const sums = partial.view().as<float>();
      parallel_for(ctx.threads(), split.chunks, [=, N = N, C = C](int64_t k) {
        float* const sum = sums + k * C;
        std::fill(sum, sum + C, 0.0f);
        const int64_t end = std::min(N, (k + 1) * split.rows);
        for (int64_t n = k * split.rows; n < end; ++n)
          for (int64_t c = 0; c < C; ++c)
            sum[c] += to_f32(gradient[n * C + c]) * to_f32(value[n * C + c]);
      });
      auto* const to = dg.as<float>();
      parallel_chunks(ctx.threads(), C, 256, [=, C = C](int64_t begin, int64_t end) {
        add_chunks(to, false, sums, split.chunks, C, begin, end);
      });
    }
    if (dv.defined()) scale_all<T>(ctx, dv, dy, g, View());
  });
}

}  // namespace snug
