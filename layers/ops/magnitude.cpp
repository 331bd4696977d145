#include "layers/ops/magnitude.h"

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/magnitude_simt.h"

namespace snug {
namespace {

void expect_of(const View& x, const char* argument, std::initializer_list<Extent> extents,
               DType dtype) {
  expect(x, argument, extents);
  expect_dtype(x, argument, {dtype});
}

constexpr int64_t kNormColumns = 256, kNormRows = 32;  // of a piece; of a task

// Squares of rows [begin, end), at most kNormRows, to `squares`.
template <class T>
void square_rows(double* squares, const T* w, const T* a, const T* b, float s, int64_t begin,
                 int64_t end, int64_t I, int64_t R) {
  std::fill(squares, squares + (end - begin), 0.0);
  float row[kNormColumns];
  for (int64_t i = 0; i < I; i += kNormColumns) {
    const int64_t n = std::min(kNormColumns, I - i);
    for (int64_t j = begin; j < end; ++j) {
      const T* const from = w + j * I + i;
      for (int64_t k = 0; k < n; ++k) row[k] = to_f32(from[k]);
      for (int64_t r = 0; r < R; ++r) {
        const float factor = s * to_f32(b[j * R + r]);
        const T* const direction = a + r * I + i;
        for (int64_t k = 0; k < n; ++k) row[k] += factor * to_f32(direction[k]);
      }
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t k = 0; k < n; ++k) sum += row[k] * row[k];
      squares[j - begin] += static_cast<double>(sum);
    }
  }
}

constexpr int64_t kTileRows = 64, kTileColumns = 32, kTileRanks = 32;

// Squares of columns [begin, end), at most kTileColumns, to `squares`.
template <class T>
void square_columns(double* squares, const T* e, const T* a, const T* b, float s, int64_t begin,
                    int64_t end, int64_t V, int64_t I, int64_t R) {
  const int64_t n = end - begin;
  std::fill(squares, squares + n, 0.0);
  float tile[kTileRows * kTileColumns], up[kTileRanks * kTileColumns];
  for (int64_t first = 0; first < V; first += kTileRows) {
    const int64_t rows = std::min(kTileRows, V - first);
    for (int64_t v = 0; v < rows; ++v)
      for (int64_t i = 0; i < n; ++i)
        tile[v * kTileColumns + i] = to_f32(e[(first + v) * I + begin + i]);
    for (int64_t r = 0; r < R; r += kTileRanks) {
      const int64_t ranks = std::min(kTileRanks, R - r);
      for (int64_t k = 0; k < ranks; ++k)
        for (int64_t i = 0; i < n; ++i)
          up[k * kTileColumns + i] = to_f32(b[(begin + i) * R + r + k]);
      for (int64_t v = 0; v < rows; ++v)
        for (int64_t k = 0; k < ranks; ++k) {
          const float factor = s * to_f32(a[(first + v) * R + r + k]);
          float* const to = tile + v * kTileColumns;
          const float* const from = up + k * kTileColumns;
          for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
        }
    }
    float sums[kTileColumns] = {};
    for (int64_t v = 0; v < rows; ++v)
      for (int64_t i = 0; i < n; ++i)
        sums[i] += tile[v * kTileColumns + i] * tile[v * kTileColumns + i];
    for (int64_t i = 0; i < n; ++i) squares[i] += static_cast<double>(sums[i]);
  }
}

}  // namespace

void adapted_column_norms(Context& ctx, const View& norms, const View& e, const View& a,
                          const View& b, float s) {
  if (e.shape.rank() != 2 || a.shape.rank() != 2)
    fail(ErrorCode::shape, "adapted_column_norms: e (V,I) and a (V,R)",
         describe(e) + " and " + describe(a), "reshape them to rows and columns");
  const int64_t V = e.shape[0], I = e.shape[1], R = a.shape[1];
  expect_of(norms, "adapted_column_norms: norms", {{"I", I}}, e.dtype);
  expect_of(a, "adapted_column_norms: a", {{"V", V}, {"R", R}}, e.dtype);
  expect_of(b, "adapted_column_norms: b", {{"I", I}, {"R", R}}, e.dtype);
  dispatch_float(e, "adapted_column_norms: e", [&](auto tag) {
    using T = decltype(tag);
    Op op(
        ctx, "adapted_column_norms",
        {.flops = 2 * V * I * (R + 1), .bytes = e.bytes() + a.bytes() + b.bytes() + norms.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { adapted_column_norms_on(queue, norms, e, a, b, s); });
    T* const to = norms.as<T>();
    const T *const table = e.as<const T>(), *const down = a.as<const T>(),
                   *const up = b.as<const T>();
    parallel_chunks(ctx.threads(), I, kTileColumns, [=](int64_t begin, int64_t end) {
      double squares[kTileColumns];
      square_columns(squares, table, down, up, s, begin, end, V, I, R);
      for (int64_t i = begin; i < end; ++i)
        to[i] = from_f32<T>(static_cast<float>(std::sqrt(squares[i - begin])));
    });
  });
}

void adapted_row_norms(Context& ctx, const View& norms, const View& w, const View& a, const View& b,
                       float s) {
  if (w.shape.rank() != 2 || a.shape.rank() != 2)
    fail(ErrorCode::shape, "adapted_row_norms: w (O,I) and a (R,I)",
         describe(w) + " and " + describe(a), "reshape them to rows and columns");
  const int64_t O = w.shape[0], I = w.shape[1], R = a.shape[0];
  expect_of(norms, "adapted_row_norms: norms", {{"O", O}}, w.dtype);
  expect_of(a, "adapted_row_norms: a", {{"R", R}, {"I", I}}, w.dtype);
  expect_of(b, "adapted_row_norms: b", {{"O", O}, {"R", R}}, w.dtype);
  dispatch_float(w, "adapted_row_norms: w", [&](auto tag) {
    using T = decltype(tag);
    Op op(
        ctx, "adapted_row_norms",
        {.flops = 2 * O * I * (R + 1), .bytes = w.bytes() + a.bytes() + b.bytes() + norms.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { adapted_row_norms_on(queue, norms, w, a, b, s); });
    T* const to = norms.as<T>();
    const T *const weight = w.as<const T>(), *const down = a.as<const T>(),
                   *const up = b.as<const T>();
    parallel_chunks(ctx.threads(), O, kNormRows, [=](int64_t begin, int64_t end) {
      double squares[kNormRows];
      square_rows(squares, weight, down, up, s, begin, end, I, R);
      for (int64_t j = begin; j < end; ++j)
        to[j] = from_f32<T>(static_cast<float>(std::sqrt(squares[j - begin])));
    });
  });
}

void magnitude_factor_forward(Context& ctx, const View& g, const View& m, const View& norms) {
  const int64_t O = g.elements();
  expect_of(g, "magnitude_factor: g", {{"O", O}}, DType::f32);
  if (m.defined()) expect(m, "magnitude_factor: m", {{"O", O}});
  if (norms.defined()) expect_of(norms, "magnitude_factor: norms", {{"O", O}}, m.dtype);
  const auto run = [&](auto tag) {
    using T = decltype(tag);
    Op op(ctx, "magnitude_factor_forward",
          {.flops = O,
           .bytes =
               g.bytes() + (m.defined() ? m.bytes() : 0) + (norms.defined() ? norms.bytes() : 0)});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { magnitude_factor_on(queue, g, m, norms); });
    auto* const to = g.as<float>();
    const T* const from = m.defined() ? m.as<const T>() : nullptr;
    const T* const by = norms.defined() ? norms.as<const T>() : nullptr;
    for (int64_t j = 0; j < O; ++j) {
      const float norm = by ? to_f32(by[j]) : 1.0f;
      to[j] = from && norm > 0.0f ? to_f32(from[j]) / norm : 1.0f;
    }
  };
  if (m.defined())
    dispatch_float(m, "magnitude_factor: m", run);
  else
    run(float{});
}

void magnitude_factor_backward(Context& ctx, const GradView& dm, const View& dg,
                               const View& norms) {
  const int64_t O = dg.elements();
  expect_of(dg, "magnitude_factor: dg", {{"O", O}}, DType::f32);
  expect(dm.view, "magnitude_factor: dm", {{"O", O}});
  expect_gradient_dtype(ctx, dm.view, "magnitude_factor: dm");
  if (norms.defined()) expect(norms, "magnitude_factor: norms", {{"O", O}});
  const auto run = [&](auto tag) {
    using T = decltype(tag);
    dispatch_gradient(dm.view, "magnitude_factor: dm", [&](auto of_dm) {
      using G = decltype(of_dm);
      Op op(ctx, "magnitude_factor_backward",
            {.flops = (dm.add ? 2 : 1) * O,
             .bytes = dg.bytes() + (dm.add ? 2 : 1) * dm.view.bytes() +
                      (norms.defined() ? norms.bytes() : 0)});
      if (!op.run()) return;
      if (ctx.by_kernels())
        return on_queue(ctx,
                        [&](auto& queue) { magnitude_factor_backward_on(queue, dm, dg, norms); });
      auto* const to = dm.view.as<G>();
      const auto* const from = dg.as<const float>();
      const T* const by = norms.defined() ? norms.as<const T>() : nullptr;
      for (int64_t j = 0; j < O; ++j) {
        const float norm = by ? to_f32(by[j]) : 1.0f;
        const float value = norm > 0.0f ? from[j] / norm : 0.0f;
        to[j] = from_f32<G>(dm.add ? to_f32(to[j]) + value : value);
      }
    });
  };
  if (norms.defined())
    dispatch_float(norms, "magnitude_factor: norms", run);
  else
    run(float{});
}

}  // namespace snug
