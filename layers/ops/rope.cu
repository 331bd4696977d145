#include <algorithm>

#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "layers/ops/rope_simt.h"
#include "layers/ops/row_positions_device.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

struct Frequencies {
  float of[kMostRopePairs];
};

// See row_loops_rope.h.
struct CosSin {
  float cos, sin;
};
__device__ inline CosSin cos_sin_of(float x, float cos_factor, float sin_factor) {
  constexpr float kShift = 12582912.0f;
  const float k = fma(x, 0.318309873f, kShift) - kShift;
  const float r = fma(-k, -8.74227766e-8f, fma(-k, 3.14159274f, x)), z = r * r;
  float s = fma(-2.40782789e-8f, z, 2.75363800e-6f);
  s = fma(s, z, -1.98410853e-4f);
  s = fma(s, z, 8.33333284e-3f);
  s = fma(s, z, -1.66666672e-1f);
  float c = fma(2.01795047e-9f, z, -2.75423162e-7f);
  c = fma(c, z, 2.48014549e-5f);
  c = fma(c, z, -1.38888881e-3f);
  c = fma(c, z, 4.16666679e-2f);
  c = fma(c, z, -0.5f);
  const float odd = fma(-(fma(k, 0.5f, kShift) - kShift), 2.0f, k);
  const float sign = fma(-(odd * odd), 2.0f, 1.0f);
  return {fma(c, z, 1.0f) * sign * cos_factor, fma(s * z, r, r) * sign * sin_factor};
}

struct Layout {
  int64_t rows, width, d, half;
  int64_t rotated;  // heads
  int64_t heads;    // that have threads: those, and where y is another tensor those of v
  int64_t slots;    // threads a head: one for every N pairs, or for every N values
  float cos_factor, sin_factor;
};

// N pairs a thread; where y is another tensor, also N values of what is copied.
template <class T, int N>
__global__ void rope_kernel(T* y, const T* x, const __grid_constant__ Constant<Frequencies> inverse,
                            RowPlaces place, Layout io) {
  const int64_t item = block() * threads() + thread(), per_row = io.heads * io.slots;
  if (item >= io.rows * per_row) return;
  const int64_t row = item / per_row, head = item % per_row / io.slots, i = item % io.slots * N;
  const int64_t at = row * io.width + head * io.d + i;
  if (head >= io.rotated || i >= 2 * io.half) return Pack<T, N>::load(x + at).store(y + at);
  if (i >= io.half) return;  // with its partner
  const auto position = static_cast<float>(place(row));
  const auto a = Pack<T, N>::load(x + at), b = Pack<T, N>::load(x + at + io.half);
  Pack<T, N> first, second;
  for (int k = 0; k < N; ++k) {
    const CosSin t = cos_sin_of(position * inverse->of[i + k], io.cos_factor, io.sin_factor);
    const float u = to_f32(a[k]), v = to_f32(b[k]);
    first[k] = from_f32<T>(fma(-v, t.sin, u * t.cos));
    second[k] = from_f32<T>(fma(u, t.sin, v * t.cos));
  }
  first.store(y + at);
  second.store(y + at + io.half);
}

}  // namespace

template <class Queue>
void rope_on(Queue& queue, const View& y, const View& qkv, int64_t T, const RopeSpec& spec,
             float direction, const View& state, const View& document_start, int threads) {
  const auto half = static_cast<int64_t>(spec.inverse_frequencies.size());
  Frequencies inverse{};
  std::copy(spec.inverse_frequencies.begin(), spec.inverse_frequencies.end(), inverse.of);
  const bool copies = y.data != qkv.data;
  dispatch_float(qkv, "qkv", [&](auto tag) {
    using E = decltype(tag);
    constexpr int kWide = kVector<E>;
    const bool wide = half % kWide == 0 && spec.D % kWide == 0 && aligned_to_vectors(y.data) &&
                      aligned_to_vectors(qkv.data);
    const int64_t rotated = spec.H + spec.G, heads = copies ? rotated + spec.G : rotated;
    const int64_t slots = (copies ? spec.D : half) / (wide ? kWide : 1);
    const Layout io{qkv.shape[0],
                    qkv.shape[1],
                    spec.D,
                    half,
                    rotated,
                    heads,
                    slots,
                    spec.attention_factor,
                    direction * spec.attention_factor};
    launch(queue,
           {.blocks = ceil_div(io.rows * heads * slots, int64_t{threads}), .threads = threads},
           "rope", wide ? rope_kernel<E, kWide> : rope_kernel<E, 1>, y.as<E>(), qkv.as<const E>(),
           inverse, row_places(state, document_start, T), io);
  });
}

template void rope_on(simt::Queue&, const View&, const View&, int64_t, const RopeSpec&, float,
                      const View&, const View&, int);

}  // namespace snug
