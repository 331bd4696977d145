#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "layers/ops/softcap_simt.h"

namespace snug {
namespace {

struct Forward {
  float cap, inverse;
  __device__ float operator()(float x) const { return cap * simt::tanh(x * inverse); }
};
struct Backward {
  float inverse;
  __device__ float operator()(float dy, float y) const {
    const float t = y * inverse;
    return dy * (1.0f - t * t);
  }
};

}  // namespace

template <class Queue>
void softcap_forward_on(Queue& queue, const View& y, const View& x, float cap, int threads) {
  simt::map(queue, "softcap_forward", Forward{cap, 1.0f / cap}, threads, x.elements(),
            y.as<float>(), x.as<const float>());
}

template <class Queue>
void softcap_backward_on(Queue& queue, const View& dx, const View& dy, const View& y, float cap,
                         int threads) {
  dispatch_float(dy, "dy", [&](auto tag) {
    using T = decltype(tag);
    simt::map(queue, "softcap_backward", Backward{1.0f / cap}, threads, y.elements(), dx.as<T>(),
              dy.as<const T>(), y.as<const float>());
  });
}

template void softcap_forward_on(simt::Queue&, const View&, const View&, float, int);
template void softcap_backward_on(simt::Queue&, const View&, const View&, const View&, float, int);

}  // namespace snug
