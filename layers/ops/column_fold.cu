#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/simt.h"
#include "layers/ops/column_fold_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// One element of u a thread: neighbours read neighbours.
template <class T>
__global__ void column_fold_kernel(T* u, const T* x, FoldedColumns f, int64_t n, int64_t r,
                                   int64_t stride, int64_t again) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const int64_t j = i % r;
  const T* const row = x + i / r * stride + f.first;
  float sum = 0;
  for (int64_t c = j; c < f.width; c += r) sum += to_f32(row[c]);
  if (j >= r - again) sum += to_f32(row[j - (r - again)]);
  u[i] = from_f32<T>(sum);
}

// One element of y a thread.
template <class T>
__global__ void column_lay_kernel(T* y, bool add, const T* v, FoldedColumns f, int64_t n, int64_t r,
                                  int64_t stride, int64_t again) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const int64_t c = i % f.width;
  const T* const row = v + i / f.width * r;
  float value = to_f32(row[c % r]);
  if (c < again) value += to_f32(row[c + r - again]);
  T& out = y[i / f.width * stride + f.first + c];
  out = from_f32<T>(add ? to_f32(out) + value : value);
}

}  // namespace

template <class Queue>
void column_fold_on(Queue& queue, const View& u, const View& x, FoldedColumns f, int threads) {
  const int64_t n = u.elements(), r = u.shape[1];
  dispatch_float(x, "x", [&](auto of) {
    using T = decltype(of);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "column_fold",
           column_fold_kernel<T>, u.as<T>(), x.as<const T>(), f, n, r, x.shape[1], f.again(r));
  });
}

template <class Queue>
void column_lay_on(Queue& queue, const GradView& y, const View& v, FoldedColumns f, int threads) {
  const int64_t n = v.shape[0] * f.width, r = v.shape[1];
  dispatch_float(v, "v", [&](auto of) {
    using T = decltype(of);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "column_lay",
           column_lay_kernel<T>, y.view.as<T>(), y.add, v.as<const T>(), f, n, r, y.view.shape[1],
           f.again(r));
  });
}

template void column_fold_on(simt::Queue&, const View&, const View&, FoldedColumns, int);
template void column_lay_on(simt::Queue&, const GradView&, const View&, FoldedColumns, int);

}  // namespace snug
