// What store_tile does, with 512-bit registers; the same bits. A row of a tile is at most two.
#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "engine/blas/matmul_tile.h"
#include "engine/blas/turn_avx512.h"
#include "engine/core/isa.h"

namespace snug::blas {
namespace {

SNUG_AVX512 inline __m512 load(const float* c, __mmask16 m) {
  return _mm512_maskz_loadu_ps(m, c);
}
SNUG_AVX512 inline __m512 load(const bf16* c, __mmask16 m) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, c));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
SNUG_AVX512 inline __m512 load(const f16* c, __mmask16 m) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, c));
}

SNUG_AVX512 inline void put(float* c, __mmask16 m, __m512 v) {
  _mm512_mask_storeu_ps(c, m, v);
}
// To nearest even by integers, as from_f32: the conversion instruction would flush subnormals.
SNUG_AVX512 inline void put(bf16* c, __mmask16 m, __m512 v) {
  const __m512i u = _mm512_castps_si512(v), top = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
  const __m512i near =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  _mm256_mask_storeu_epi16(c, m, _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(near, nan, quiet)));
}
// As from_f32: every NaN becomes the quiet one of its sign.
SNUG_AVX512 inline void put(f16* c, __mmask16 m, __m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
  const __m512i plain = _mm512_mask_or_epi32(bits, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), sign,
                                             _mm512_set1_epi32(0x7fc00000));
  _mm256_mask_storeu_epi16(
      c, m,
      _mm512_cvtps_ph(_mm512_castsi512_ps(plain), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// 32 sums to a line of bf16: the upper halves of what rounding left, side by side. put's bits.
SNUG_AVX512 inline __m512i round_line(__m512 x, __m512 y) {
  const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
  const __m512i quiet = _mm512_set1_epi32(0x400000);
  const __m512i u = _mm512_castps_si512(x), v = _mm512_castps_si512(y);
  const __m512i u_odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), one);
  const __m512i v_odd = _mm512_and_si512(_mm512_srli_epi32(v, 16), one);
  __m512i a = _mm512_add_epi32(_mm512_add_epi32(u, half), u_odd);
  __m512i b = _mm512_add_epi32(_mm512_add_epi32(v, half), v_odd);
  a = _mm512_mask_or_epi32(a, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, quiet);
  b = _mm512_mask_or_epi32(b, _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q), v, quiet);
  const __m512i upper =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_permutex2var_epi16(a, upper, b);
}

// The same bits where the CPU converts by itself: its instruction makes zeros of subnormals, so a
// line that has some goes the long way.
#define SNUG_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
SNUG_AVX512_BF16 inline __m512i convert_line(__m512 x, __m512 y) {
  constexpr int kSubnormal = 0x20;
  const __mmask16 small =
      _mm512_fpclass_ps_mask(x, kSubnormal) | _mm512_fpclass_ps_mask(y, kSubnormal);
  if (__builtin_expect(small != 0, 0)) return round_line(x, y);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y, x));
}

// 32 sums of every row of a tile, rounded and put into C.
SNUG_AVX512_BF16 void convert_whole(const MatmulProblem& p, const float* tile, int64_t ld,
                                    const float* bias, bf16* to, int64_t rows, bool stream) {
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  const __m512 b0 = _mm512_load_ps(bias), b1 = _mm512_load_ps(bias + 16);
  for (int64_t i = 0; i < rows; ++i, tile += ld, to += p.ldc) {
    __m512 x = _mm512_mul_ps(alpha, _mm512_loadu_ps(tile));
    __m512 y = _mm512_mul_ps(alpha, _mm512_loadu_ps(tile + 16));
    if (p.bias != nullptr) x = _mm512_add_ps(x, b0), y = _mm512_add_ps(y, b1);
    const __m512i line = convert_line(x, y);
    if (stream)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
    else
      _mm512_storeu_si512(to, line);
  }
}

// Whole rows of a tile of 32 columns, straight to C; `stream`: C's lines are aligned, and written
// past the caches.
template <class T>
SNUG_AVX512 void store_whole(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0,
                             int64_t n0, int64_t rows, bool stream) {
  alignas(64) float bias[32] = {};
  if (p.bias != nullptr)
    for (int64_t j = 0; j < 32; ++j) bias[j] = value_at(p.bias, p.bias_dtype, n0 + j);
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  const __m512 b0 = _mm512_load_ps(bias), b1 = _mm512_load_ps(bias + 16);
  T* to = static_cast<T*>(p.c) + m0 * p.ldc + n0;
  if constexpr (std::is_same_v<T, bf16>)
    if (use_avx512_bf16()) return convert_whole(p, tile, ld, bias, to, rows, stream);
  for (int64_t i = 0; i < rows; ++i, tile += ld, to += p.ldc) {
    __m512 x = _mm512_mul_ps(alpha, _mm512_loadu_ps(tile));
    __m512 y = _mm512_mul_ps(alpha, _mm512_loadu_ps(tile + 16));
    if (p.bias != nullptr) x = _mm512_add_ps(x, b0), y = _mm512_add_ps(y, b1);
    if constexpr (std::is_same_v<T, bf16>) {
      const __m512i line = round_line(x, y);
      if (stream)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to), line);
      else
        _mm512_storeu_si512(to, line);
    } else if (stream) {
      _mm512_stream_ps(to, x);
      _mm512_stream_ps(to + 16, y);
    } else {
      _mm512_storeu_ps(to, x);
      _mm512_storeu_ps(to + 16, y);
    }
  }
}

template <class T>
SNUG_AVX512 void store(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0,
                       int64_t n0, int64_t rows, int64_t cols) {
  alignas(64) float v[kMaxTileRows][kMaxTileCols];
  alignas(64) float bias[kMaxTileCols] = {};
  if (p.bias != nullptr)
    for (int64_t j = 0; j < cols; ++j) bias[j] = value_at(p.bias, p.bias_dtype, n0 + j);
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  T* c = p.c == nullptr ? nullptr : static_cast<T*>(p.c) + m0 * p.ldc + n0;
  const bool keep = p.finish.tile != nullptr;
  for (int64_t j = 0; j < cols; j += 16) {
    const auto m = static_cast<__mmask16>((1u << std::min<int64_t>(16, cols - j)) - 1u);
    const __m512 b = _mm512_load_ps(bias + j);
    const float* from = tile + j;
    T* to = c == nullptr ? nullptr : c + j;
    for (int64_t i = 0; i < rows; ++i, from += ld) {
      // A tile's rows are whole, 16 or 32 floats, whatever part of them is C's.
      __m512 x = _mm512_mul_ps(alpha, _mm512_loadu_ps(from));
      if (p.bias != nullptr) x = _mm512_add_ps(x, b);
      if (p.accumulate) x = _mm512_add_ps(x, load(to, m));
      if (keep)
        _mm512_store_ps(v[i] + j, x);
      else
        put(to, m, x);
      if (to != nullptr) to += p.ldc;
    }
  }
  if (keep) p.finish.tile(p.finish.context, v[0], kMaxTileCols, m0, n0, rows, cols);
}

SNUG_AVX512 void turn_tile(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0,
                           int64_t n0, int64_t rows, int64_t cols) {
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  for (int64_t j0 = 0; j0 < cols; j0 += 16)
    for (int64_t i0 = 0; i0 < rows; i0 += 16) {
      __m512 r[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i)
        r[i] = i0 + i < rows ? _mm512_loadu_ps(tile + (i0 + i) * ld + j0) : _mm512_setzero_ps();
      transpose16(r);
      const __mmask16 m = mask_of(rows - i0);
      float* to = static_cast<float*>(p.c) + (n0 + j0) * p.ldc + m0 + i0;
#pragma GCC unroll 16
      for (int64_t j = 0; j < 16; ++j) {
        if (j0 + j >= cols) break;
        const __m512 x = _mm512_mul_ps(alpha, r[j]);
        put(to + j * p.ldc, m, p.accumulate ? _mm512_add_ps(x, load(to + j * p.ldc, m)) : x);
      }
    }
}

}  // namespace

bool store_turned_avx512(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0,
                         int64_t n0, int64_t rows, int64_t cols) {
  if (!use_avx512()) return false;
  turn_tile(p, tile, ld, m0, n0, rows, cols);
  return true;
}

bool store_tile_avx512(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0,
                       int64_t n0, int64_t rows, int64_t cols) {
  if (!use_avx512()) return false;
  const bool whole = cols == 32 && !p.accumulate && p.finish.tile == nullptr;
  if (whole && p.c_dtype == DType::f32)
    store_whole<float>(p, tile, ld, m0, n0, rows, streams_c(p));
  else if (whole && p.c_dtype == DType::bf16)
    store_whole<bf16>(p, tile, ld, m0, n0, rows, streams_c(p));
  else if (p.c_dtype == DType::f32)
    store<float>(p, tile, ld, m0, n0, rows, cols);
  else if (p.c_dtype == DType::bf16)
    store<bf16>(p, tile, ld, m0, n0, rows, cols);
  else
    store<f16>(p, tile, ld, m0, n0, rows, cols);
  return true;
}

}  // namespace snug::blas
