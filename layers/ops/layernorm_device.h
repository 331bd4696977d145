// A row of layer normalisation by one warp, and sums over rows by a block: what the kernels of
// layernorm, residual and rmsnorm share.
#pragma once

#include <initializer_list>

#include "engine/core/view.h"
#include "engine/simt/map.h"
#include "engine/simt/reduce.h"

namespace snug {
inline namespace SIMT_SIDE {

// y_n of x_n, c elements, in vectors of N. first(i) gives the vector at i on the first pass over
// the row and leaves it in x_n, where the same lane reads it again.
template <class V, class W, int N, class First>
__device__ inline void normalise_row(V* y_n, float* mean_out, float* rstd_out, const V* x_n,
                                     const W* weight, const W* bias, int64_t c, float eps,
                                     First&& first) {
  using simt::kWarp, simt::lane, simt::Pack;
  const auto width = static_cast<float>(c);
  float sum = 0.0f;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto v = first(i);
    for (int k = 0; k < N; ++k) sum += to_f32(v[k]);
  }
  const float mean = simt::warp_sum(sum) / width;
  float squares = 0.0f;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto v = Pack<V, N>::load(x_n + i);
    for (int k = 0; k < N; ++k) {
      const float d = to_f32(v[k]) - mean;
      squares += d * d;
    }
  }
  const float rstd = simt::rsqrt(simt::warp_sum(squares) / width + eps);
  if (lane() == 0) {
    *mean_out = mean;
    *rstd_out = rstd;
  }
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto v = Pack<V, N>::load(x_n + i);
    const auto w = Pack<W, N>::load(weight + i);
    Pack<W, N> b{};
    if (bias) b = Pack<W, N>::load(bias + i);
    Pack<V, N> out;
    for (int k = 0; k < N; ++k)
      out[k] = from_f32<V>((to_f32(v[k]) - mean) * rstd * to_f32(w[k]) + to_f32(b[k]));
    out.store(y_n + i);
  }
}

// Columns whose sums a block holds in shared memory: 64 KiB. Wider rows are summed piece by piece.
inline constexpr int64_t kColumnsOfABlock = 8192;

// Sums over rows of K kinds (of dy xhat, and of dy) in shared memory: for `columns` columns from
// `first` on, in `slots` parts. A thread has a vector of columns and every slots-th row, or several
// vectors. A vector of eight floats lies in two halves apart, so that neighbours meet in no bank.
template <int N, int K>
struct ColumnSums {
  static constexpr int kHalf = N < 4 ? N : 4;
  simt::Shared<float> sums;  // (slots, K, columns)
  int64_t first;
  int columns, slots;

  __device__ int vectors() const { return columns / N; }
  __device__ int place(int item, int kind, int k) const {
    const int v = item % vectors(), slot = item / vectors();
    return (slot * K + kind) * columns + k / kHalf * kHalf * vectors() + v * kHalf + k % kHalf;
  }
  __device__ simt::Pack<float, N> load(int item, int kind) const {
    simt::Pack<float, N> all;
    for (int k = 0; k < N; k += kHalf) {
      const auto half = simt::Pack<float, kHalf>::load(sums, place(item, kind, k));
      for (int j = 0; j < kHalf; ++j) all[k + j] = half[j];
    }
    return all;
  }
  __device__ void store(int item, int kind, const simt::Pack<float, N>& all) const {
    for (int k = 0; k < N; k += kHalf) {
      simt::Pack<float, kHalf> half;
      for (int j = 0; j < kHalf; ++j) half[j] = all[k + j];
      half.store(sums, place(item, kind, k));
    }
  }
};

// Whether rows of c elements of V in all of these can be read as vectors of 16 bytes.
template <class V>
bool wide_rows(int64_t c, std::initializer_list<const View*> views) {
  bool wide = c % simt::kVector<V> == 0;
  for (const View* v : views) wide = wide && simt::aligned_to_vectors(v->data);
  return wide;
}

}  // namespace SIMT_SIDE
}  // namespace snug
