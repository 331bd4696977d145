#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/simt.h"
#include "layers/ops/front_keys_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// One element of a row a thread: neighbours read neighbours.
template <class T>
__global__ void front_keys_kernel(T* y, const int32_t* tokens, const T* table, FrontKeys f,
                                  int64_t n, int64_t stride, int64_t k, int64_t w) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const int64_t row = i / f.width, c = i % f.width, token = tokens[row] - f.first;
  if (token >= 0 && token < k) y[row * stride + f.column + c] = table[token * w + f.at + c];
}

// A column of a virtual token a thread, which goes through all rows: few are its.
template <class D, class T>
__global__ void front_keys_gradient_kernel(D* dtable, bool add, T* dy, const int32_t* tokens,
                                           FrontKeys f, int64_t n, int64_t rows, int64_t stride,
                                           int64_t w) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const int64_t token = i / f.width, c = i % f.width;
  float sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (tokens[row] - f.first != token) continue;
    T& from = dy[row * stride + f.column + c];
    sum += to_f32(from);
    from = from_f32<T>(0.0f);
  }
  if (!dtable) return;
  D& out = dtable[token * w + f.at + c];
  out = from_f32<D>(add ? to_f32(out) + sum : sum);
}

}  // namespace

template <class Queue>
void front_keys_forward_on(Queue& queue, const View& y, const View& tokens, const View& table,
                           FrontKeys f, int threads) {
  const int64_t n = y.shape[0] * f.width;
  dispatch_float(y, "y", [&](auto of) {
    using T = decltype(of);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "front_keys",
           front_keys_kernel<T>, y.as<T>(), tokens.as<const int32_t>(), table.as<const T>(), f, n,
           y.shape[1], table.shape[0], table.shape[1]);
  });
}

template <class Queue>
void front_keys_backward_on(Queue& queue, const GradView& dtable, const View& dy,
                            const View& tokens, int64_t K, FrontKeys f, int threads) {
  const int64_t n = K * f.width;
  const bool wanted = dtable.view.defined();
  dispatch_float(dy, "dy", [&](auto of) {
    using T = decltype(of);
    dispatch_float(wanted ? dtable.view : dy, "dtable", [&](auto to) {
      using D = decltype(to);
      launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads},
             "front_keys_gradient", front_keys_gradient_kernel<D, T>,
             wanted ? dtable.view.as<D>() : nullptr, dtable.add, dy.as<T>(),
             tokens.as<const int32_t>(), f, n, dy.shape[0], dy.shape[1],
             wanted ? dtable.view.shape[1] : 0);
    });
  });
}

template void front_keys_forward_on(simt::Queue&, const View&, const View&, const View&, FrontKeys,
                                    int);
template void front_keys_backward_on(simt::Queue&, const GradView&, const View&, const View&,
                                     int64_t, FrontKeys, int);

}  // namespace snug
