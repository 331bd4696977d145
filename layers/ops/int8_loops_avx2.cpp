#include <immintrin.h>

#include "layers/ops/int8_loops.h"

namespace snug {
namespace {

// No pair of 16-bit sums overflows: |x| <= 127 and |w| <= 128.
template <int kRows>
void half_block(int32_t* sums, const uint8_t* x, const uint8_t* block, int64_t width) {
  constexpr int kVectors = 4;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum[kRows][kVectors];
  for (auto& row : sum)
    for (__m256i& v : row) v = _mm256_setzero_si256();
  for (int64_t k = 0; k < width; k += 4) {
    __m256i w[kVectors];
    for (int j = 0; j < kVectors; ++j)
      w[j] = _mm256_loadu_si256(
          reinterpret_cast<const __m256i*>(block + k * kInt8Columns + int64_t{32} * j));
    for (int r = 0; r < kRows; ++r) {
      const __m256i b = _mm256_castps_si256(
          _mm256_broadcast_ss(reinterpret_cast<const float*>(x + r * width + k)));
      const __m256i magnitudes = _mm256_abs_epi8(b);
      for (int j = 0; j < kVectors; ++j)
        sum[r][j] = _mm256_add_epi32(
            sum[r][j],
            _mm256_madd_epi16(_mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(w[j], b)), ones));
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < kVectors; ++j)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kInt8Columns + int64_t{8} * j),
                          sum[r][j]);
}

void product(int32_t* sums, const uint8_t* x, int64_t rows, const uint8_t* block, int64_t width) {
  for (int half = 0; half < 2; ++half) {
    int32_t* to = sums + int64_t{32} * half;
    const uint8_t* from = block + int64_t{128} * half;
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) half_block<2>(to + r * kInt8Columns, x + r * width, from, width);
    if (r < rows) half_block<1>(to + r * kInt8Columns, x + r * width, from, width);
  }
}

}  // namespace

Int8Loops int8_loops_avx2() {
  return {0, product};
}

}  // namespace snug
