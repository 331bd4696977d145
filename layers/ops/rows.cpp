#include "layers/ops/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/loops.h"
#include "layers/ops/row_tasks.h"
#include "layers/ops/rows_simt.h"

namespace snug {
namespace {

constexpr int32_t kNoRow = -1;

// `whole` (N,C), of which `some` (M,C) are rows.
void check_shapes(const View& whole, const char* whole_argument, const View& some,
                  const char* argument, const View& index) {
  if (whole.shape.rank() != 2)
    fail(ErrorCode::shape, std::string(whole_argument) + " of shape (N,C)", describe(whole),
         "reshape it to rows and columns");
  if (index.shape.rank() != 1)
    fail(ErrorCode::shape, "index of shape (M)", describe(index), "give one number a row");
  expect_dtype(index, "index", {DType::i32});
  expect(some, argument, {{"M", index.shape[0]}, {"C", whole.shape[1]}});
  expect_dtype(some, argument, {whole.dtype});
}

// Threads cannot throw, so the whole index is looked at before the work is shared.
void check_index(const View& index, int64_t rows) {
  const auto* at = index.as<int32_t>();
  for (int64_t m = 0; m < index.elements(); ++m)
    if (at[m] < kNoRow || at[m] >= rows)
      fail(ErrorCode::data, fmt::format("an index of [0,N)=[0,{}), or -1 for no row", rows),
           fmt::format("{} at place {} of {}", at[m], m, index.name.view()),
           "name rows of the batch");
}

// source[n] = the m with index[m] = n, or -1.
void find_sources(int32_t* source, const View& index, int64_t rows) {
  std::fill(source, source + rows, kNoRow);
  const auto* at = index.as<int32_t>();
  for (int64_t m = 0; m < index.elements(); ++m) {
    if (at[m] == kNoRow) continue;
    if (source[at[m]] != kNoRow)
      fail(ErrorCode::data, "an index that names a row once",
           fmt::format("{} at places {} and {} of {}", at[m], source[at[m]], m, index.name.view()),
           "leave out the second");
    source[at[m]] = static_cast<int32_t>(m);
  }
}

}  // namespace

void rows_gather_forward(Context& ctx, const View& y, const View& x, const View& index) {
  check_shapes(x, "x", y, "y", index);
  const int64_t n = x.shape[0], m = y.shape[0], c = x.shape[1];
  dispatch_float(x, "x", [&](auto tag) {
    using T = decltype(tag);
    Op op(ctx, "rows_gather_forward", {.flops = 0, .bytes = 2 * y.bytes() + index.bytes()});
    if (!op.run()) return;
    if (ctx.host_reads()) check_index(index, n);
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { rows_gather_forward_on(queue, y, x, index); });
    const auto* at = index.as<int32_t>();
    T* to = y.as<T>();
    const T* from = x.as<T>();
    parallel_chunks(ctx.threads(), m, row_grain(c), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        if (at[row] == kNoRow)
          std::fill_n(to + row * c, c, from_f32<T>(0.0f));
        else
          std::copy_n(from + at[row] * c, c, to + row * c);
    });
  });
}

void rows_gather_backward(Context& ctx, const View& dx, const View& dy, const View& index,
                          bool add_dx) {
  check_shapes(dx, "dx", dy, "dy", index);
  const int64_t n = dx.shape[0], c = dx.shape[1];
  static const Name kSource("rows_gather_backward.source");
  dispatch_float(dx, "dx", [&](auto tag) {
    using T = decltype(tag);
    const Tensor source = ctx.tensor(kSource, {n}, DType::i32, Category::workspace);
    Op op(ctx, "rows_gather_backward",
          {.flops = add_dx ? dy.elements() : 0,
           .bytes = index.bytes() + dy.bytes() + (add_dx ? 2 * dy.bytes() : dx.bytes())});
    if (!op.run()) return;
    if (ctx.host_reads()) {
      check_index(index, n);
      // Kernels make their own.
      find_sources(source.view().as<int32_t>(), index, n);
    }
    if (ctx.by_kernels())
      return on_queue(
          ctx, [&](auto& queue) { rows_gather_backward_on(queue, dx, dy, index, add_dx, source); });
    const auto* row_of = source.view().as<int32_t>();
    T* to = dx.as<T>();
    const T* from = dy.as<T>();
    const auto add_row = pair_loops<T, T>().add;
    parallel_chunks(ctx.threads(), n, row_grain(c), [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t m = row_of[row];
        if (m == kNoRow) {
          if (!add_dx) std::fill_n(to + row * c, c, from_f32<T>(0.0f));
        } else if (add_dx) {
          add_row(to + row * c, from + m * c, c);
        } else {
          std::copy_n(from + m * c, c, to + row * c);
        }
      }
    });
  });
}

}  // namespace snug
