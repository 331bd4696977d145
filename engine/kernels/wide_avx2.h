// Sixteen floats at a time in AVX2: a pair of registers. engine/kernels/wide_avx512.h is the same
// in one register, and a loop written over both gives the same bits. To be included inside the
// anonymous namespace of a file that holds the loops of one instruction set, after <immintrin.h>
// and engine/core/dtype.h; nothing of the standard library is used here: a copy compiled for wide
// registers must never be the one that the linker keeps for everybody.
#pragma once

struct V {
  __m256 lo, hi;
};
constexpr int kRegisters = 16;  // of the width of a half
inline V operator+(V a, V b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline V operator-(V a, V b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
inline V operator*(V a, V b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
inline V operator/(V a, V b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
inline V set1(float x) {
  return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
// a b + c and c - a b with one rounding.
inline V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline V fnma(V a, V b, V c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
// The second operand if one is NaN.
inline V max_of(V a, V b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
inline V min_of(V a, V b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
// The lowest nine bits, moved to sign and exponent.
inline V exponent_bits(V x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.lo), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.hi), 23))};
}
// y, or 0 where x < bound.
inline V zero_below(V x, V bound, V y) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, bound.lo, _CMP_NLT_UQ), y.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, bound.hi, _CMP_NLT_UQ), y.hi)};
}

inline __m256 lane_mask8(int bits) {
  const __m256i bit = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  return _mm256_castsi256_ps(
      _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), bit), bit));
}
// Zero in the lanes whose bit is 0.
inline V keep_lanes(uint32_t bits, V x) {
  return {_mm256_and_ps(lane_mask8(static_cast<int>(bits)), x.lo),
          _mm256_and_ps(lane_mask8(static_cast<int>(bits >> 8)), x.hi)};
}
// The halves change places.
inline V swap_halves(V x) {
  return {x.hi, x.lo};
}
inline __m256 low_half(V x) {
  return x.lo;
}
inline __m256 high_half(V x) {
  return x.hi;
}

inline V load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline V load(const bf16* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  const auto half = [](__m128i u) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(u), 16));
  };
  return {half(_mm_loadu_si128(q)), half(_mm_loadu_si128(q + 1))};
}
inline V load(const f16* p) {
  const auto* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}

inline void store(float* p, V x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
// Past the caches: 32 (bf16, f16) or 64 bytes at a multiple of as many.
inline void stream(float* p, V x) {
  _mm256_stream_ps(p, x.lo);
  _mm256_stream_ps(p + 8, x.hi);
}
inline void store(bf16* p, V x) {
  // from_f32<bf16>: to nearest even; a NaN keeps its upper bits and is quieted.
  const auto half = [](__m256 v) {
    const __m256i u = _mm256_castps_si256(v), upper = _mm256_srli_epi32(u, 16);
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)),
                                           _mm256_and_si256(upper, _mm256_set1_epi32(1))),
                          16);
    const __m256i nan = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  };
  const __m256i packed = _mm256_packus_epi32(half(x.lo), half(x.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xD8));
}
inline void store(f16* p, V x) {
  // from_f32<f16>: every NaN becomes the quiet one of its sign.
  const auto half = [](__m256 v) {
    const __m256 sign = _mm256_and_ps(v, _mm256_set1_ps(-0.0f));
    const __m256 nan = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
    const __m256 plain = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_cvtps_ph(plain, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  };
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half(x.lo));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p) + 1, half(x.hi));
}

template <class T>
inline void stream(T* p, V x) {
  alignas(32) T v[16];
  store(v, x);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_load_si256(reinterpret_cast<const __m256i*>(v)));
}

// Thirty-two values: of 16 bits a whole line. stream32 wants a multiple of 64 bytes.
struct Pair {
  V a, b;
};
template <class T>
inline Pair load32(const T* p) {
  return {load(p), load(p + 16)};
}
template <class T>
inline void store32(T* p, V a, V b) {
  store(p, a);
  store(p + 16, b);
}
template <class T>
inline void stream32(T* p, V a, V b) {
  stream(p, a);
  stream(p + 16, b);
}

// The first r < 16 elements; zeros behind them.
template <class T>
inline V load_part(const T* p, int64_t r) {
  T v[16] = {};
  for (int64_t i = 0; i < r; ++i) v[i] = p[i];
  return load(v);
}
template <class T>
inline void store_part(T* p, V x, int64_t r) {
  T v[16];
  store(v, x);
  for (int64_t i = 0; i < r; ++i) p[i] = v[i];
}

// Eight doubles.
struct D {
  __m256d lo, hi;
};
inline D zero_doubles() {
  return {_mm256_setzero_pd(), _mm256_setzero_pd()};
}
inline D operator+(D a, D b) {
  return {_mm256_add_pd(a.lo, b.lo), _mm256_add_pd(a.hi, b.hi)};
}
inline D square_of(const float* p) {
  const __m256d lo = _mm256_cvtps_pd(_mm_loadu_ps(p)), hi = _mm256_cvtps_pd(_mm_loadu_ps(p + 4));
  return {_mm256_mul_pd(lo, lo), _mm256_mul_pd(hi, hi)};
}
inline __m256d low_half(D x) {
  return x.lo;
}
inline __m256d high_half(D x) {
  return x.hi;
}
