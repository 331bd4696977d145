#include "engine/kernels/dispatch.h"
#include "engine/kernels/elementwise_simt.h"
#include "engine/simt/map.h"

namespace snug {
namespace {

struct Same {
  __device__ float operator()(float x) const { return x; }
};
struct Plus {
  __device__ float operator()(float y, float x) const { return y + x; }
};

struct Times {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

}  // namespace

template <class Queue>
void cast_on(Queue& queue, const View& y, const View& x, int threads) {
  dispatch_float(x, "x", [&](auto from) {
    dispatch_float(y, "y", [&](auto to) {
      simt::map(queue, "cast", Same{}, threads, x.elements(), y.as<decltype(to)>(),
                x.as<const decltype(from)>());
    });
  });
}

template <class Queue>
void add_on(Queue& queue, const View& y, const View& x, int threads) {
  dispatch_float(x, "x", [&](auto from) {
    dispatch_float(y, "y", [&](auto to) {
      auto* at = y.as<decltype(to)>();
      simt::map(queue, "add", Plus{}, threads, x.elements(), at,
                static_cast<const decltype(to)*>(at), x.as<const decltype(from)>());
    });
  });
}

template <class Queue>
void scale_on(Queue& queue, const View& x, float factor, int threads) {
  dispatch_float(x, "x", [&](auto tag) {
    auto* at = x.as<decltype(tag)>();
    simt::map(queue, "scale", Times{factor}, threads, x.elements(), at,
              static_cast<const decltype(tag)*>(at));
  });
}

template void cast_on(simt::Queue&, const View&, const View&, int);
template void add_on(simt::Queue&, const View&, const View&, int);
template void scale_on(simt::Queue&, const View&, float, int);

}  // namespace snug
