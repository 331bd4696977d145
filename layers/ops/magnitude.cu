#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/reduce.h"
#include "engine/simt/simt.h"
#include "layers/ops/magnitude_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A warp a row; rows past the end are whole warps that leave.
template <class T>
__global__ void adapted_row_norms_kernel(T* norms, const T* w, const T* a, const T* b, float s,
                                         int64_t rows, int64_t I, int64_t R) {
  const int64_t j = block() * warps() + warp();
  if (j >= rows) return;
  float squares = 0.0f;
  for (int64_t i = lane(); i < I; i += kWarp) {
    float value = to_f32(w[j * I + i]);
    for (int64_t r = 0; r < R; ++r) value += s * to_f32(b[j * R + r]) * to_f32(a[r * I + i]);
    squares += value * value;
  }
  const float sum = warp_sum(squares);
  if (lane() == 0) norms[j] = from_f32<T>(simt::sqrt(sum));
}

// A block takes a tile of 32 columns, a lane one of them, a warp every warps()-th row, whose A all its
// lanes read; 64 of its rows are added in float, and these sums in double: a vocabulary's are many.
template <class T>
__global__ void adapted_column_norms_kernel(T* norms, const T* e, const T* a, const T* b, float s,
                                            int64_t V, int64_t I, int64_t R) {
  constexpr int kFloatRows = 64;
  const auto parts = dynamic_smem<double>();  // (warps, 32)
  const int64_t i = block() * kWarp + lane();
  double all = 0;
  float squares = 0.0f;
  int added = 0;
  if (i < I)
    for (int64_t v = warp(); v < V; v += warps()) {
      float value = to_f32(e[v * I + i]);
      for (int64_t r = 0; r < R; ++r) value += s * to_f32(a[v * R + r]) * to_f32(b[i * R + r]);
      squares += value * value;
      if (++added < kFloatRows) continue;
      all += static_cast<double>(squares);
      squares = 0.0f;
      added = 0;
    }
  parts[warp() * kWarp + lane()] = all + static_cast<double>(squares);
  sync_threads();
  if (warp() > 0 || i >= I) return;
  double sum = 0;
  for (int w = 0; w < warps(); ++w) sum += parts[w * kWarp + lane()];
  norms[i] = from_f32<T>(simt::sqrt(static_cast<float>(sum)));
}

template <class T>
__global__ void magnitude_factor_kernel(float* g, const T* m, const T* norms, int64_t n) {
  const int64_t j = block() * threads() + thread();
  if (j >= n) return;
  const float norm = norms ? to_f32(norms[j]) : 1.0f;
  g[j] = m && norm > 0.0f ? to_f32(m[j]) / norm : 1.0f;
}

template <class G, class T>
__global__ void magnitude_factor_backward_kernel(G* dm, bool add, const float* dg, const T* norms,
                                                 int64_t n) {
  const int64_t j = block() * threads() + thread();
  if (j >= n) return;
  const float norm = norms ? to_f32(norms[j]) : 1.0f;
  const float value = norm > 0.0f ? dg[j] / norm : 0.0f;
  dm[j] = from_f32<G>(add ? to_f32(dm[j]) + value : value);
}

// With the dtype of a vector, or of any if there is none.
template <class F>
void dispatch_or_none(const View& x, const char* argument, F&& f) {
  if (x.defined())
    dispatch_float(x, argument, f);
  else
    f(float{});
}

}  // namespace

template <class Queue>
void adapted_row_norms_on(Queue& queue, const View& norms, const View& w, const View& a,
                          const View& b, float s, int threads) {
  const int64_t rows = w.shape[0];
  dispatch_float(w, "adapted_row_norms: w", [&](auto tag) {
    using T = decltype(tag);
    launch(queue, {.blocks = ceil_div(rows, int64_t{threads / kWarp}), .threads = threads},
           "adapted_row_norms", adapted_row_norms_kernel<T>, norms.as<T>(), w.as<const T>(),
           a.as<const T>(), b.as<const T>(), s, rows, w.shape[1], a.shape[0]);
  });
}

template <class Queue>
void adapted_column_norms_on(Queue& queue, const View& norms, const View& e, const View& a,
                             const View& b, float s, int threads) {
  const int64_t I = e.shape[1];
  dispatch_float(e, "adapted_column_norms: e", [&](auto tag) {
    using T = decltype(tag);
    launch(queue,
           {.blocks = ceil_div(I, int64_t{kWarp}),
            .threads = threads,
            .shared_bytes = threads * int64_t{sizeof(double)}},
           "adapted_column_norms", adapted_column_norms_kernel<T>, norms.as<T>(), e.as<const T>(),
           a.as<const T>(), b.as<const T>(), s, e.shape[0], I, a.shape[1]);
  });
}

template <class Queue>
void magnitude_factor_on(Queue& queue, const View& g, const View& m, const View& norms,
                         int threads) {
  const int64_t n = g.elements();
  dispatch_or_none(m, "magnitude_factor: m", [&](auto tag) {
    using T = decltype(tag);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "magnitude_factor",
           magnitude_factor_kernel<T>, g.as<float>(),
           m.defined() ? m.as<const T>() : static_cast<const T*>(nullptr),
           norms.defined() ? norms.as<const T>() : static_cast<const T*>(nullptr), n);
  });
}

template <class Queue>
void magnitude_factor_backward_on(Queue& queue, const GradView& dm, const View& dg,
                                  const View& norms, int threads) {
  const int64_t n = dg.elements();
  dispatch_gradient(dm.view, "magnitude_factor: dm", [&](auto of_dm) {
    using G = decltype(of_dm);
    dispatch_or_none(norms, "magnitude_factor: norms", [&](auto tag) {
      using T = decltype(tag);
      launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads},
             "magnitude_factor_backward", magnitude_factor_backward_kernel<G, T>, dm.view.as<G>(),
             dm.add, dg.as<const float>(),
             norms.defined() ? norms.as<const T>() : static_cast<const T*>(nullptr), n);
    });
  });
}

template void adapted_row_norms_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                   float, int);
template void adapted_column_norms_on(simt::Queue&, const View&, const View&, const View&,
                                      const View&, float, int);
template void magnitude_factor_on(simt::Queue&, const View&, const View&, const View&, int);
template void magnitude_factor_backward_on(simt::Queue&, const GradView&, const View&, const View&,
                                           int);

}  // namespace snug
