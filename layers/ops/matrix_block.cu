#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/simt.h"
#include "layers/ops/matrix_block_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// One element a thread: neighbours of a row lie beside each other in both.
template <class M, class B>
__global__ void block_put_kernel(M* m, const B* b, float factor, int64_t n, int64_t columns,
                                 int64_t stride) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  m[i / columns * stride + i % columns] = from_f32<M>(factor * to_f32(b[i]));
}

template <class B, class M>
__global__ void block_take_kernel(B* b, bool add, const M* m, float factor, int64_t n,
                                  int64_t columns, int64_t stride) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const float value = factor * to_f32(m[i / columns * stride + i % columns]);
  b[i] = from_f32<B>(add ? to_f32(b[i]) + value : value);
}

}  // namespace

template <class Queue>
void block_put_on(Queue& queue, const View& m, const View& b, BlockPlace place, int threads) {
  const int64_t n = b.elements(), stride = m.shape[1];
  dispatch_float(m, "m", [&](auto of_m) {
    dispatch_float(b, "b", [&](auto of_b) {
      using M = decltype(of_m);
      using B = decltype(of_b);
      launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "block_put",
             block_put_kernel<M, B>, m.as<M>() + place.row * stride + place.col, b.as<const B>(),
             place.factor, n, b.shape[1], stride);
    });
  });
}

template <class Queue>
void block_take_on(Queue& queue, const GradView& b, const View& m, BlockPlace place, int threads) {
  const int64_t n = b.view.elements(), stride = m.shape[1];
  dispatch_gradient(b.view, "b", [&](auto of_b) {
    dispatch_float(m, "m", [&](auto of_m) {
      using B = decltype(of_b);
      using M = decltype(of_m);
      launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "block_take",
             block_take_kernel<B, M>, b.view.as<B>(), b.add,
             m.as<const M>() + place.row * stride + place.col, place.factor, n, b.view.shape[1],
             stride);
    });
  });
}

template void block_put_on(simt::Queue&, const View&, const View&, BlockPlace, int);
template void block_take_on(simt::Queue&, const GradView&, const View&, BlockPlace, int);

}  // namespace snug
