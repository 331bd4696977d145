// Sixteen floats at a time in AVX-512: engine/kernels/wide_avx2.h in one register, with the same
// names and the same bits. Included inside a namespace, where the target is switched to AVX-512.
#pragma once

using V = __m512;  // + - * / are the compiler's own
constexpr int kRegisters = 32;
inline V set1(float x) {
  return _mm512_set1_ps(x);
}
inline V fma(V a, V b, V c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline V fnma(V a, V b, V c) {
  return _mm512_fnmadd_ps(a, b, c);
}
inline V max_of(V a, V b) {
  return _mm512_max_ps(a, b);
}
inline V min_of(V a, V b) {
  return _mm512_min_ps(a, b);
}
inline V exponent_bits(V x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23));
}
inline V zero_below(V x, V bound, V y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), y);
}
// By a mask of bits in a register. A zeroing move would be merged with the load of x into a masked
// load, and those wait for the stores before them: dropout into another tensor took three times as
// long.
inline V keep_lanes(uint32_t bits, V x) {
  return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_movm_epi32(static_cast<__mmask16>(bits))));
}
inline V swap_halves(V x) {
  return _mm512_shuffle_f32x4(x, x, 0x4E);
}
inline __m256 low_half(V x) {
  return _mm512_castps512_ps256(x);
}
inline __m256 high_half(V x) {
  return _mm512_extractf32x8_ps(x, 1);
}

// A permutation of words moves the sixteen bits to where they belong in one step, where widening
// and shifting take two.
inline V wide_bf16(__m256i u) {
  const __m512i to_upper =
      _mm512_mullo_epi32(_mm512_set1_epi32(0x10000),
                         _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, to_upper, _mm512_castsi256_si512(u)));
}
inline __m256i round_to_bf16(V x) {
  // from_f32<bf16>: to nearest even; a NaN keeps its upper bits and is quieted.
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i upper = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u,
                                             _mm512_set1_epi32(0x400000));
  const __m512i from_upper = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015,
                                              0x130011, 0x0f000d, 0x0b0009, 0x070005, 0x030001);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(from_upper, upper));
}
inline __m256i narrow_bf16(V x) {
#if defined(SNUG_WIDE_BF16)
  // The CPU's own conversion gives the same bits but for subnormals, of which it makes zeros.
  constexpr int kSubnormal = 0x20;
  if (__builtin_expect(_mm512_fpclass_ps_mask(x, kSubnormal) == 0, 1))
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#endif
  return round_to_bf16(x);
}
inline __m256i narrow_f16(V x) {
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
  const V plain = _mm512_castsi512_ps(_mm512_mask_or_epi32(_mm512_castps_si512(x),
                                                           _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                                           sign, _mm512_set1_epi32(0x7fc00000)));
  return _mm512_cvtps_ph(plain, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

inline V load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline V load(const bf16* p) {
  return wide_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline V load(const f16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store(float* p, V x) {
  _mm512_storeu_ps(p, x);
}
inline void store(bf16* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
inline void store(f16* p, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_f16(x));
}

inline void stream(float* p, V x) {
  _mm512_stream_ps(p, x);
}
inline void stream(bf16* p, V x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
}
inline void stream(f16* p, V x) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_f16(x));
}

struct Pair {
  V a, b;
};
template <class T>
inline Pair load32(const T* p) {
  return {load(p), load(p + 16)};
}
inline Pair load32(const bf16* p) {
  const __m512i first =
      _mm512_mullo_epi32(_mm512_set1_epi32(0x10000),
                         _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(0x100000));
  __m512i u = _mm512_loadu_si512(p);
  asm("" : "+v"(u));  // one load, which is what layer normalisation has too many of, not two
  return {_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, first, u)),
          _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAA, second, u))};
}
inline __m512i join(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
inline __m512i narrow32(const bf16*, V a, V b) {
#if defined(SNUG_WIDE_BF16)
  // A subnormal has become a zero, and few results are zeros: one look at 32 of them.
  const auto packed = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
  if (__builtin_expect(_mm512_testn_epi16_mask(packed, _mm512_set1_epi16(0x7fff)) == 0, 1))
    return packed;
#endif
  return join(narrow_bf16(a), narrow_bf16(b));
}
inline __m512i narrow32(const f16*, V a, V b) {
  return join(narrow_f16(a), narrow_f16(b));
}
template <class T>
inline void store32(T* p, V a, V b) {
  _mm512_storeu_si512(p, narrow32(p, a, b));
}
inline void store32(float* p, V a, V b) {
  store(p, a);
  store(p + 16, b);
}
template <class T>
inline void stream32(T* p, V a, V b) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), narrow32(p, a, b));
}
inline void stream32(float* p, V a, V b) {
  stream(p, a);
  stream(p + 16, b);
}

inline __mmask16 first_lanes(int64_t r) {
  return static_cast<__mmask16>((1u << r) - 1);
}
inline V load_part(const float* p, int64_t r) {
  return _mm512_maskz_loadu_ps(first_lanes(r), p);
}
inline V load_part(const bf16* p, int64_t r) {
  return wide_bf16(_mm256_maskz_loadu_epi16(first_lanes(r), p));
}
inline V load_part(const f16* p, int64_t r) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(r), p));
}
inline void store_part(float* p, V x, int64_t r) {
  _mm512_mask_storeu_ps(p, first_lanes(r), x);
}
inline void store_part(bf16* p, V x, int64_t r) {
  _mm256_mask_storeu_epi16(p, first_lanes(r), narrow_bf16(x));
}
inline void store_part(f16* p, V x, int64_t r) {
  _mm256_mask_storeu_epi16(p, first_lanes(r), narrow_f16(x));
}

using D = __m512d;
inline D zero_doubles() {
  return _mm512_setzero_pd();
}
inline D square_of(const float* p) {
  const D v = _mm512_cvtps_pd(_mm256_loadu_ps(p));
  return v * v;
}
inline __m256d low_half(D x) {
  return _mm512_castpd512_pd256(x);
}
inline __m256d high_half(D x) {
  return _mm512_extractf64x4_pd(x, 1);
}
