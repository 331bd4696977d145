// What the packers share: masks, bf16 pairs woven from two rows of k, and sixteen rows of sixteen
// units turned, with 512-bit registers.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "engine/core/dtype.h"

// GCC 12 takes the undefined source of its own shuffle intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#define SNUG_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))

namespace snug::blas {

SNUG_AVX512 inline __mmask16 mask_of(int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, 16)) - 1u);
}

// Sixteen pairs: those elements of two rows that the mask names; hi null: zeros.
SNUG_AVX512 inline __m512 weave16(const bf16* lo, const bf16* hi, __mmask16 m) {
  const __m512i a = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, lo));
  const __m512i b = hi == nullptr ? _mm512_setzero_si512()
                                  : _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, hi));
  return _mm512_castsi512_ps(_mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
}

// Sixteen rows of sixteen units, turned.
SNUG_AVX512 inline void transpose16(__m512 (&r)[16]) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i + 0] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  // r[4 g + j]: quarter q holds unit 4 q + j of lanes 4 g .. 4 g + 3.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
    t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
    t[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
    t[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
    t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

}  // namespace snug::blas
