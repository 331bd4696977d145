// How a sum over rows is cut so that it runs in parallel and has the same bits for any number of
// threads: at most 32 chunks of whole rows, by the number of rows alone. Each chunk sums into a row
// of its own in a planned workspace, and the chunks are added in order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/core/units.h"

namespace snug {

struct RowSplit {
  explicit RowSplit(int64_t n)
      : rows(std::max<int64_t>(16, ceil_div(n, 32))), chunks(ceil_div(n, rows)) {}
  int64_t rows;    // of a chunk; the last may have fewer
  int64_t chunks;  // 0 for no rows
};

// out[c] (+)= sum over k of partial[k * width + c], k in order, in float; a 16-bit out is widened
// before and rounded once behind. For c of [begin, end).
template <class T>
inline void add_chunks(T* out, bool add, const float* partial, int64_t chunks, int64_t width,
                       int64_t begin, int64_t end) {
  constexpr int64_t kPiece = 256;
  float sum[kPiece];
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t n = std::min(kPiece, end - at);
    for (int64_t i = 0; i < n; ++i) sum[i] = add ? to_f32(out[at + i]) : 0.0f;
    for (int64_t k = 0; k < chunks; ++k) {
      const float* row = partial + k * width + at;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += row[i];
    }
    for (int64_t i = 0; i < n; ++i) out[at + i] = from_f32<T>(sum[i]);
  }
}

}  // namespace snug
