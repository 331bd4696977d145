// The vector primitives of attention_blocks_body.h for AVX-512. Included inside the anonymous
// namespace of a .cpp that is compiled for it.

#pragma once

using V = __m512;
using I = __m512i;
constexpr int64_t kWidth = 16;
constexpr int kMaxVectors = 4, kMaxRows = 6;  // 24 sums, 4 of B, 1 of A: 29 of 32 registers
constexpr int kTurn = 1;

inline V load(const float* p) {
  return _mm512_loadu_ps(p);
}
inline void store(float* p, V x) {
  _mm512_storeu_ps(p, x);
}
inline V set1(float x) {
  return _mm512_set1_ps(x);
}
inline V add(V a, V b) {
  return _mm512_add_ps(a, b);
}
inline V sub(V a, V b) {
  return _mm512_sub_ps(a, b);
}
inline V mul(V a, V b) {
  return _mm512_mul_ps(a, b);
}
inline V fma(V a, V b, V c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline V max_of(V a, V b) {
  return _mm512_max_ps(a, b);
}
inline V round_even(V x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
}
// p * 2^n, rounded once.
inline V times_exp2(V p, V n) {
  return _mm512_scalef_ps(p, n);
}
inline V zero_below(V x, V bound, V y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), y);
}
inline V zero_unless(uint32_t bits, V x) {
  return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x);
}
inline I iset1(uint32_t x) {
  return _mm512_set1_epi32(static_cast<int>(x));
}
inline I evens() {
  return _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
}
inline I iadd(I a, I b) {
  return _mm512_add_epi32(a, b);
}
inline I xor3(I a, I b, I c) {
  return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
inline I low_product(I a, I b) {
  return _mm512_mul_epu32(a, b);
}
inline I high_half(I a) {
  return _mm512_srli_epi64(a, 32);
}
inline I interleave(I even, I odd) {
  return _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
}
inline I lower_halves(I a) {
  return _mm512_slli_epi32(a, 16);
}
inline uint32_t at_least(I a, I bound) {
  return _mm512_cmpge_epu32_mask(a, bound);
}
inline uint32_t halves_equal(I a, I b) {
  return _mm512_cmpeq_epi16_mask(a, b);
}
