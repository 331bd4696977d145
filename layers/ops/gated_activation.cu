#include <initializer_list>

#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "layers/ops/activation_device.h"
#include "layers/ops/gated_activation_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// N neighbours of y a thread; `pieces` of them a row.
template <class A, class T, int N>
__global__ void gated_activation_forward_kernel(T* y, const T* gate_up, int64_t rows,
                                                int64_t pieces) {
  const int64_t i = block() * threads() + thread();
  if (i >= rows * pieces) return;
  const T* const at = gate_up + (i / pieces * 2 * pieces + i % pieces) * N;
  const auto gate = Pack<T, N>::load(at), up = Pack<T, N>::load(at + pieces * N);
  Pack<T, N> out;
  for (int k = 0; k < N; ++k) out[k] = from_f32<T>(A::value(to_f32(gate[k])) * to_f32(up[k]));
  out.store(y + i * N);
}

template <class A, class T, int N>
__global__ void gated_activation_backward_kernel(T* dgate_up, const T* dy, const T* gate_up,
                                                 int64_t rows, int64_t pieces) {
  const int64_t i = block() * threads() + thread();
  if (i >= rows * pieces) return;
  const int64_t at = (i / pieces * 2 * pieces + i % pieces) * N;
  const auto gate = Pack<T, N>::load(gate_up + at),
             up = Pack<T, N>::load(gate_up + at + pieces * N);
  const auto d = Pack<T, N>::load(dy + i * N);
  Pack<T, N> dgate, dup;
  for (int k = 0; k < N; ++k) {
    const float x = to_f32(gate[k]), g = to_f32(d[k]);
    dgate[k] = from_f32<T>(g * to_f32(up[k]) * A::slope(x));
    dup[k] = from_f32<T>(g * A::value(x));
  }
  dgate.store(dgate_up + at);
  dup.store(dgate_up + at + pieces * N);
}

// f(width): how many neighbours a thread takes, for tensors of rows of a multiple of F.
template <class T, class F>
void with_width(int64_t f, std::initializer_list<const View*> views, F&& run) {
  bool wide = f % kVector<T> == 0;
  for (const View* v : views) wide = wide && aligned_to_vectors(v->data);
  if (wide)
    run(std::integral_constant<int, kVector<T>>{});
  else
    run(std::integral_constant<int, 1>{});
}

}  // namespace

template <class Queue>
void gated_activation_forward_on(Queue& queue, const View& y, const View& gate_up, Activation kind,
                                 int threads) {
  const int64_t n = y.shape[0], f = y.shape[1];
  dispatch_float(gate_up, "gate_up", [&](auto tag) {
    using T = decltype(tag);
    dispatch_activation_kernel(kind, [&](auto function) {
      using A = decltype(function);
      with_width<T>(f, {&y, &gate_up}, [&](auto width) {
        constexpr int kN = decltype(width)::value;
        launch(queue, {.blocks = ceil_div(n * f / kN, int64_t{threads}), .threads = threads},
               "gated_activation_forward", gated_activation_forward_kernel<A, T, kN>, y.as<T>(),
               gate_up.as<const T>(), n, f / kN);
      });
    });
  });
}

template <class Queue>
void gated_activation_backward_on(Queue& queue, const View& dgate_up, const View& dy,
                                  const View& gate_up, Activation kind, int threads) {
  const int64_t n = dy.shape[0], f = dy.shape[1];
  dispatch_float(gate_up, "gate_up", [&](auto tag) {
    using T = decltype(tag);
    dispatch_activation_kernel(kind, [&](auto function) {
      using A = decltype(function);
      with_width<T>(f, {&dgate_up, &dy, &gate_up}, [&](auto width) {
        constexpr int kN = decltype(width)::value;
        launch(queue, {.blocks = ceil_div(n * f / kN, int64_t{threads}), .threads = threads},
               "gated_activation_backward", gated_activation_backward_kernel<A, T, kN>,
               dgate_up.as<T>(), dy.as<const T>(), gate_up.as<const T>(), n, f / kN);
      });
    });
  });
}

template void gated_activation_forward_on(simt::Queue&, const View&, const View&, Activation, int);
template void gated_activation_backward_on(simt::Queue&, const View&, const View&, const View&,
                                           Activation, int);

}  // namespace snug
