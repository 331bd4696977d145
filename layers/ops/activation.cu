#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "layers/ops/activation_device.h"
#include "layers/ops/activation_simt.h"

namespace snug {
namespace {

template <class A>
struct Forward {
  __device__ float operator()(float x) const { return A::value(x); }
};
template <class A>
struct Backward {
  __device__ float operator()(float dy, float x) const { return dy * A::slope(x); }
};

}  // namespace

template <class Queue>
void activation_forward_on(Queue& queue, const View& y, const View& x, Activation kind,
                           int threads) {
  dispatch_float(x, "x", [&](auto tag) {
    dispatch_activation_kernel(kind, [&](auto function) {
      using T = decltype(tag);
      simt::map(queue, "activation_forward", Forward<decltype(function)>{}, threads, x.elements(),
                y.as<T>(), x.as<const T>());
    });
  });
}

template <class Queue>
void activation_backward_on(Queue& queue, const View& dx, const View& dy, const View& x,
                            Activation kind, int threads) {
  dispatch_float(x, "x", [&](auto tag) {
    dispatch_activation_kernel(kind, [&](auto function) {
      using T = decltype(tag);
      simt::map(queue, "activation_backward", Backward<decltype(function)>{}, threads, x.elements(),
                dx.as<T>(), dy.as<const T>(), x.as<const T>());
    });
  });
}

template void activation_forward_on(simt::Queue&, const View&, const View&, Activation, int);
template void activation_backward_on(simt::Queue&, const View&, const View&, const View&,
                                     Activation, int);

}  // namespace snug
