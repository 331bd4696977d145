// Blocks of q, k, v and dout from the activations to scratch, in the layouts the products take, and
// back. A unit is a float or a pair of bf16 (attention_blocks.h). Internal to the folder.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "engine/core/dtype.h"
#include "layers/ops/attention_blocks.h"

namespace snug {

// Units of a row of n values.
constexpr int64_t units_of(int64_t n, bool pairs) {
  return pairs ? (n + 1) / 2 : n;
}

// n up to a whole number of the steps that products take.
constexpr int64_t in_steps(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

// Makes rows [from, to) zero.
inline void clear_rows(float* rows, int64_t ld, int64_t from, int64_t to) {
  if (from < to) std::fill_n(rows + from * ld, (to - from) * ld, 0.0f);
}

// to(i,u): row i of x with its neighbours in d paired; `ld` units a row, zero from D on.
template <class T>
void pack_rows(float* to, int64_t ld, const T* x, int64_t stride, int64_t rows, int64_t D,
               bool pairs) {
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = x + i * stride;
    if constexpr (std::is_same_v<T, bf16>) {
      if (pairs) {
        // Inline: a call of memcpy for every row of 128 bytes is dear.
        auto* row = reinterpret_cast<bf16*>(to + i * ld);
        int64_t d = 0;
        for (; d + 16 <= D; d += 16)
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + d),
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + d)));
        for (; d < 2 * ld; ++d) row[d] = d < D ? from[d] : bf16{0};
        continue;
      }
    }
    float* row = to + i * ld;
    int64_t d = 0;
    if constexpr (std::is_same_v<T, f16>)
      for (; d + 8 <= D; d += 8)
        _mm256_storeu_ps(
            row + d, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + d))));
    for (; d < D; ++d) row[d] = to_f32(from[d]);
    for (; d < ld; ++d) row[d] = 0;
  }
}

// to(u,d): column d with rows 2u and 2u + 1 paired (floats: row u); `ld` units a row, zero from D
// on and for the partner of an odd last row.
template <class T>
void pack_columns(float* to, int64_t ld, const T* x, int64_t stride, int64_t rows, int64_t D,
                  bool pairs) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (pairs) {
      for (int64_t i = 0; i < rows; i += 2) {
        const T *even = x + i * stride, *odd = even + stride;
        auto* row = reinterpret_cast<uint32_t*>(to + i / 2 * ld);
        if (i + 1 < rows)
          for (int64_t d = 0; d < D; ++d)
            row[d] = even[d].bits | static_cast<uint32_t>(odd[d].bits) << 16;
        else
          for (int64_t d = 0; d < D; ++d) row[d] = even[d].bits;
        for (int64_t d = D; d < ld; ++d) row[d] = 0;
      }
      return;
    }
  }
  pack_rows(to, ld, x, stride, rows, D, pairs);
}

// Asks for rows that will be packed next; they lie too far apart for the hardware to guess.
template <class T>
void prefetch_rows(const T* x, int64_t stride, int64_t rows, int64_t D) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = 0; d < D + kLine - 1; d += kLine)
      __builtin_prefetch(x + i * stride + (d < D ? d : D - 1), 0, 2);
}

// Changes the sign of every value of n units.
inline void flip_signs(float* units, int64_t n, bool pairs) {
  auto* bits = reinterpret_cast<uint32_t*>(units);
  for (int64_t i = 0; i < n; ++i) bits[i] ^= pairs ? 0x80008000u : 0x80000000u;
}

// Rows to columns of an 8 by 8 block of 4-byte values.
inline void turn_8x8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; ++j) {
      u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
      u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xEE);
    }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// turned(u,i) = block(i,u) for i < rows, zero from there up to `lanes`, a multiple of 8; rows of
// `turned` are turned_ld apart. ld is a multiple of 8 and at least `units`.
inline void turn_block(float* turned, const float* block, int64_t ld, int64_t rows, int64_t units,
                       int64_t lanes, int64_t turned_ld) {
  for (int64_t i0 = 0; i0 < lanes; i0 += 8)
    for (int64_t u0 = 0; u0 < units; u0 += 8) {
      __m256 r[8];
      for (int64_t i = 0; i < 8; ++i)
        r[i] = i0 + i < rows ? _mm256_loadu_ps(block + (i0 + i) * ld + u0) : _mm256_setzero_ps();
      turn_8x8(r);
      for (int64_t u = 0; u < std::min<int64_t>(8, units - u0); ++u)
        _mm256_storeu_ps(turned + (u0 + u) * turned_ld + i0, r[u]);
    }
}

inline void store_8(float* to, __m256 x) {
  _mm256_storeu_ps(to, x);
}
// The rounding of from_f32<bf16>.
inline void store_8(bf16* to, __m256 x) {
  const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i near =
      _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i bits = _mm256_blendv_epi8(near, quiet, nan);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(to),
      _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
}

// The rounding of from_f32<f16>: every NaN becomes the quiet one of its sign.
inline void store_8(f16* to, __m256 x) {
  const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
  const __m256 nan = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
  const __m256 plain = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(plain, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// x(d) = row(d) * factor.
template <class T>
void store_row(T* x, const float* row, int64_t D, float factor) {
  int64_t d = 0;
  for (; d + 8 <= D; d += 8)
    store_8(x + d, _mm256_mul_ps(_mm256_loadu_ps(row + d), _mm256_set1_ps(factor)));
  for (; d < D; ++d) x[d] = from_f32<T>(row[d] * factor);
}

// x(i,d) = turned(d,i) * factor(i); rows of `turned` are ld apart.
template <class T>
void store_turned(T* x, int64_t stride, const float* turned, int64_t rows, int64_t D,
                  const float* factor, int64_t ld = kAttentionBlock) {
  const int64_t whole = D / 8 * 8;
  for (int64_t i0 = 0; i0 < rows; i0 += 8)
    for (int64_t d0 = 0; d0 < whole; d0 += 8) {
      __m256 r[8];
      for (int64_t d = 0; d < 8; ++d) r[d] = _mm256_loadu_ps(turned + (d0 + d) * ld + i0);
      turn_8x8(r);
      for (int64_t i = 0; i < std::min<int64_t>(8, rows - i0); ++i)
        store_8(x + (i0 + i) * stride + d0, _mm256_mul_ps(r[i], _mm256_set1_ps(factor[i0 + i])));
    }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t d = whole; d < D; ++d)
      x[i * stride + d] = from_f32<T>(turned[d * ld + i] * factor[i]);
}

}  // namespace snug
