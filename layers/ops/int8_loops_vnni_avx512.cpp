// Compiled for AVX-512 with VNNI whatever the flags of the build: called only where the CPU has it.
// Headers come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "layers/ops/int8_loops.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,prefer-vector-width=512")
#endif

namespace snug {
namespace {

inline int32_t word_at(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

inline int32_t sum_of(const uint8_t* x, int64_t width) {
  const __m256i ones = _mm256_set1_epi8(1);
  __m256i sum = _mm256_setzero_si256();
  for (int64_t k = 0; k < width; k += 32)
    sum =
        _mm256_dpbusd_epi32(sum, ones, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k)));
  const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
  const __m128i quarter = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0xb1)));
}

// The instruction takes one unsigned operand: w + 128, whose surplus 128 sum(x) is taken off behind.
template <int kRows>
void rows_of(int32_t* sums, const uint8_t* x, const uint8_t* block, int64_t width) {
  __m512i sum[kRows][4];
  for (int r = 0; r < kRows; ++r) {
    const __m512i surplus = _mm512_set1_epi32(-128 * sum_of(x + r * width, width));
    for (__m512i& v : sum[r]) v = surplus;
  }
  for (int64_t k = 0; k < width; k += 4) {
    const uint8_t* const from = block + k * kInt8Columns;
    const __m512i w0 = _mm512_loadu_si512(from), w1 = _mm512_loadu_si512(from + 64),
                  w2 = _mm512_loadu_si512(from + 128), w3 = _mm512_loadu_si512(from + 192);
    for (int r = 0; r < kRows; ++r) {
      const __m512i b = _mm512_set1_epi32(word_at(x + r * width + k));
      sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], w0, b);
      sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], w1, b);
      sum[r][2] = _mm512_dpbusd_epi32(sum[r][2], w2, b);
      sum[r][3] = _mm512_dpbusd_epi32(sum[r][3], w3, b);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < 4; ++j)
      _mm512_storeu_si512(sums + r * kInt8Columns + int64_t{16} * j, sum[r][j]);
}

void product(int32_t* sums, const uint8_t* x, int64_t rows, const uint8_t* block, int64_t width) {
  switch (rows) {
    case 6:
      return rows_of<6>(sums, x, block, width);
    case 5:
      return rows_of<5>(sums, x, block, width);
    case 4:
      return rows_of<4>(sums, x, block, width);
    case 3:
      return rows_of<3>(sums, x, block, width);
    case 2:
      return rows_of<2>(sums, x, block, width);
    default:
      return rows_of<1>(sums, x, block, width);
  }
}

}  // namespace

Int8Loops int8_loops_vnni_avx512() {
  return {0x80, product};
}

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
