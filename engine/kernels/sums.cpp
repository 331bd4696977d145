#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/loops.h"
#include "engine/kernels/row_room.h"
#include "engine/kernels/sums_simt.h"
#include "engine/memory/step_state.h"

namespace snug {
namespace {

constexpr int64_t kSquareChunk = kSquareElements;

double square_sum(const float* x, int64_t n) {
  return sum_of_squares(x, n);
}
// Piece by piece: widened in the nearest cache, which is exact.
double square_sum(const bf16* x, int64_t n) {
  constexpr int64_t kPiece = 1024;
  float wide[kPiece];
  const auto widen = pair_loops<float, bf16>().cast;
  double sum = 0;
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    widen(wide, x + at, count);
    sum += sum_of_squares(wide, count);
  }
  return sum;
}

}  // namespace

void column_sum(Context& ctx, const GradView& out, const View& x) {
  if (x.shape.rank() != 2)
    fail(ErrorCode::shape, "column_sum: x of shape (N,C)", describe(x),
         "reshape it to rows and columns");
  const int64_t n = x.shape[0], c = x.shape[1];
  expect(out.view, "column_sum: out", {{"C", c}});
  expect_gradient_dtype(ctx, out.view, "column_sum: out");
  const RowSplit split(n);
  static const Name kPartial("column_sum.partial");
  dispatch_float(x, "column_sum: x", [&](auto tag) {
    using T = decltype(tag);
    const Tensor partial =
        ctx.tensor(kPartial, {ctx.by_kernels() ? row_chunks(n) : most_row_chunks(n), c}, DType::f32,
                   Category::workspace);
    Op op(ctx, "column_sum", {.flops = n * c, .bytes = x.bytes() + out.view.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { column_sum_on(queue, out, partial, x); });
    const T* from = x.as<T>();
    auto* sums = partial.view().as<float>();
    const auto loop = float_loops<T>().add_rows;
    parallel_for(ctx.threads(), split.chunks, [=](int64_t k) {
      float* sum = sums + k * c;
      std::fill(sum, sum + c, 0.0f);
      const int64_t begin = k * split.rows, end = std::min(n, begin + split.rows);
      loop(sum, from + begin * c, end - begin, c, c);
    });
    dispatch_gradient(out.view, "column_sum: out", [&](auto gradient) {
      auto* to = out.view.as<decltype(gradient)>();
      parallel_chunks(ctx.threads(), c, 256, [&, to](int64_t begin, int64_t end) {
        add_chunks(to, out.add, sums, split.chunks, c, begin, end);
      });
    });
  });
}

void sum_of_squares_and_finite(Context& ctx, const View& x, const View& state,
                               int64_t first_element) {
  expect(x, "sum_of_squares_and_finite: x", {{"elements", x.elements()}});
  expect_gradient_dtype(ctx, x, "sum_of_squares_and_finite: x");
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  const int64_t n = x.elements(), chunks = ceil_div(n, kSquareChunk);
  static const Name kPartial("sum_of_squares.partial");
  const Tensor partial = ctx.tensor(kPartial, {ctx.by_kernels() ? 2 * chunks : chunks}, DType::f64,
                                    Category::workspace);
  Op op(ctx, "sum_of_squares_and_finite", {.flops = 2 * n, .bytes = x.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      sum_of_squares_and_finite_on(queue, x, partial, state, first_element);
    });
  auto* sums = partial.view().as<double>();
  dispatch_gradient(x, "sum_of_squares_and_finite: x", [&](auto tag) {
    const auto* v = x.as<const decltype(tag)>();
    parallel_chunks(ctx.threads(), n, kSquareChunk, [=](int64_t begin, int64_t end) {
      sums[begin / kSquareChunk] = square_sum(v + begin, end - begin);
    });
  });

  StepState& s = *step_state(state);
  // The squares of floats fit a double with room to spare, so the sum is finite exactly if every
  // element is.
  double sum = 0;
  for (int64_t k = 0; k < chunks; ++k) sum += sums[k];
  const double unscale = 1.0 / static_cast<double>(s.loss_scale);
  s.grad_square_sum += sum * (unscale * unscale);
  if (std::isfinite(sum)) return;
  int64_t bad = 0;
  while (std::isfinite(sums[bad / kSquareChunk])) bad += kSquareChunk;
  dispatch_gradient(x, "sum_of_squares_and_finite: x", [&](auto tag) {
    const auto* v = x.as<const decltype(tag)>();
    while (std::isfinite(to_f32(v[bad]))) ++bad;
  });
  bad += first_element;
  s.found_inf = 1;
  if (s.first_bad_element < 0 || bad < s.first_bad_element) s.first_bad_element = bad;
}

}  // namespace snug
