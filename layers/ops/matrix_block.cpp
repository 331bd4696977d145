#include "layers/ops/matrix_block.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/matrix_block_simt.h"
#include "layers/ops/row_tasks.h"

namespace snug {
namespace {

void check_place(const View& m, const View& b, BlockPlace place) {
  for (const View* v : {&m, &b})
    if (v->shape.rank() != 2)
      fail(ErrorCode::shape, "matrices (M,K) and (r,c)", describe(*v),
           "reshape it to rows and columns");
  if (place.row < 0 || place.col < 0 || place.row + b.shape[0] > m.shape[0] ||
      place.col + b.shape[1] > m.shape[1])
    fail(ErrorCode::shape, fmt::format("a block inside of {}", describe(m)),
         fmt::format("{} at row {} and column {}", describe(b), place.row, place.col),
         "check that the adapter and the model belong together");
}

}  // namespace

void block_put(Context& ctx, const View& m, const View& b, BlockPlace place) {
  check_place(m, b, place);
  const int64_t columns = b.shape[1], stride = m.shape[1];
  expect_float(m, "m");
  expect_float(b, "b");
  Op op(ctx, "block_put",
        {.flops = b.elements(), .bytes = b.bytes() + b.elements() * size_of(m.dtype)});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { block_put_on(queue, m, b, place); });
  dispatch_float(m, "m", [&](auto of_m) {
    dispatch_float(b, "b", [&](auto of_b) {
      using M = decltype(of_m);
      using B = decltype(of_b);
      M* const to = m.as<M>() + place.row * stride + place.col;
      const B* const from = b.as<const B>();
      parallel_chunks(
          ctx.threads(), b.shape[0], row_grain(columns), [=](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
              for (int64_t j = 0; j < columns; ++j)
                to[i * stride + j] = from_f32<M>(place.factor * to_f32(from[i * columns + j]));
          });
    });
  });
}

void block_take(Context& ctx, const GradView& b, const View& m, BlockPlace place) {
  check_place(m, b.view, place);
  const int64_t columns = b.view.shape[1], stride = m.shape[1];
  expect_gradient(b.view, "b");
  expect_float(m, "m");
  Op op(ctx, "block_take",
        {.flops = (b.add ? 2 : 1) * b.view.elements(),
         .bytes = (b.add ? 2 : 1) * b.view.bytes() + b.view.elements() * size_of(m.dtype)});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { block_take_on(queue, b, m, place); });
  dispatch_gradient(b.view, "b", [&](auto of_b) {
    dispatch_float(m, "m", [&](auto of_m) {
      using B = decltype(of_b);
      using M = decltype(of_m);
      B* const to = b.view.as<B>();
      const M* const from = m.as<const M>() + place.row * stride + place.col;
      parallel_chunks(ctx.threads(), b.view.shape[0], row_grain(columns),
                      [=](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i)
                          for (int64_t j = 0; j < columns; ++j) {
                            const float value = place.factor * to_f32(from[i * stride + j]);
                            B& out = to[i * columns + j];
                            out = from_f32<B>(b.add ? to_f32(out) + value : value);
                          }
                      });
    });
  });
}

}  // namespace snug
