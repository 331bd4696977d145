#include "layers/ops/front_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/kernels.h"
#include "layers/ops/front_keys_simt.h"

namespace snug {
namespace {

void check_columns(const View& y, const View& tokens, const FrontKeys& f) {
  if (y.shape.rank() != 2 || tokens.shape.elements() != y.shape[0] || f.column < 0 || f.width < 1 ||
      f.column + f.width > y.shape[1])
    fail(ErrorCode::shape,
         fmt::format("rows of tokens {} with columns {} to {}", describe(tokens), f.column,
                     f.column + f.width),
         describe(y), "check that the adapter and the model belong together");
  expect_dtype(tokens, "tokens", {DType::i32});
  expect_float(y, "y");
}

void check_table(const View& table, const FrontKeys& f) {
  if (table.shape.rank() != 2 || f.at < 0 || f.at + f.width > table.shape[1])
    fail(ErrorCode::shape, fmt::format("columns {} to {} of a table", f.at, f.at + f.width),
         describe(table), "check that the adapter and the model belong together");
}

}  // namespace

void front_keys_forward(Context& ctx, const View& y, const View& tokens, const View& table,
                        const FrontKeys& f) {
  check_columns(y, tokens, f);
  check_table(table, f);
  expect_dtype(table, "table", {y.dtype});
  const int64_t K = table.shape[0], N = y.shape[0], Q = y.shape[1], W = table.shape[1];
  // Of rows of sequences, which each have K of them at most.
  const int64_t rows = std::min(N, tokens.shape[0] * K);
  Op op(ctx, "front_keys_forward",
        {.flops = 0, .bytes = tokens.bytes() + 2 * rows * f.width * size_of(y.dtype)});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { front_keys_forward_on(queue, y, tokens, table, f); });
  const auto* const ids = tokens.as<const int32_t>();
  dispatch_float(y, "y", [&](auto of) {
    using T = decltype(of);
    T* const to = y.as<T>();
    const T* const from = table.as<const T>();
    parallel_chunks(ctx.threads(), N, 256, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        if (const int64_t k = ids[row] - f.first; k >= 0 && k < K)
          std::copy_n(from + k * W + f.at, f.width, to + row * Q + f.column);
    });
  });
}

void front_keys_backward(Context& ctx, const GradView& dtable, const View& dy, const View& tokens,
                         int64_t K, const FrontKeys& f) {
  check_columns(dy, tokens, f);
  const View& table = dtable.view;
  const bool wanted = table.defined();
  if (wanted) {
    check_table(table, f);
    expect_float(table, "dtable");
    if (table.shape[0] != K)
      fail(ErrorCode::shape, fmt::format("{} rows of dtable", K), describe(table),
           "check that the adapter and the model belong together");
    if (!dtable.add && f.width < table.shape[1]) fill_zero(ctx, table);
  }
  const int64_t N = dy.shape[0], Q = dy.shape[1], W = wanted ? table.shape[1] : 0;
  const int64_t rows = std::min(N, tokens.shape[0] * K);
  Op op(ctx, "front_keys_backward",
        {.flops = rows * f.width,
         .bytes = tokens.bytes() + 2 * rows * f.width * size_of(dy.dtype) +
                  (wanted ? (dtable.add ? 2 : 1) * K * f.width * size_of(table.dtype) : 0)});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx,
                    [&](auto& queue) { front_keys_backward_on(queue, dtable, dy, tokens, K, f); });
  const auto* const ids = tokens.as<const int32_t>();
  dispatch_float(dy, "dy", [&](auto of) {
    using T = decltype(of);
    dispatch_float(wanted ? table : dy, "dtable", [&](auto into) {
      using D = decltype(into);
      T* const from = dy.as<T>();
      D* const to = wanted ? table.as<D>() : nullptr;
      const bool add = dtable.add;
      parallel_chunks(ctx.threads(), K, 1, [=](int64_t begin, int64_t end) {
        constexpr int64_t kPiece = 256;
        for (int64_t k = begin; k < end; ++k)
          for (int64_t c0 = 0; c0 < f.width; c0 += kPiece) {
            const int64_t m = std::min(kPiece, f.width - c0);
            float sum[kPiece] = {};
            for (int64_t row = 0; row < N; ++row) {
              if (ids[row] - f.first != k) continue;
              T* const at = from + row * Q + f.column + c0;
              for (int64_t c = 0; c < m; ++c) {
                sum[c] += to_f32(at[c]);
                at[c] = from_f32<T>(0.0f);
              }
            }
            if (!to) continue;
            D* const out = to + k * W + f.at + c0;
            for (int64_t c = 0; c < m; ++c)
              out[c] = from_f32<D>(add ? to_f32(out[c]) + sum[c] : sum[c]);
          }
      });
    });
  });
}

}  // namespace snug
