// What pairs of bf16 add to attention_vectors_avx512.h, which comes before it. Included inside the
// anonymous namespace of a .cpp that is compiled for AVX-512 with BF16.

#pragma once

constexpr bool kPairs = true;

inline V multiply_add(V a, V b, V c) {
  return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
// 32 values rounded to bf16, those of `a` first.
inline V pair_lanes(V a, V b) {
  return (V)_mm512_cvtne2ps_pbh(b, a);
}
// Unit i holds lane i of both rows.
inline V pair_rows(V even, V odd) {
  const I order = _mm512_set_epi32(0x1F000F, 0x1E000E, 0x1D000D, 0x1C000C, 0x1B000B, 0x1A000A,
                                   0x190009, 0x180008, 0x170007, 0x160006, 0x150005, 0x140004,
                                   0x130003, 0x120002, 0x110001, 0x100000);
  return (V)_mm512_permutexvar_epi16(order, (I)_mm512_cvtne2ps_pbh(odd, even));
}

// 2^t by a polynomial on [0, 1) (as exp2_of; relative error 2e-7) and the exponent, which the
// scaling takes from t itself. What leaves of minus infinity is 0, and below -126 a subnormal,
// which rounding to bf16 makes 0.
inline V short_exp2_of(V t) {
  const V r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF);
  V p = fma(set1(0x1.e97502p-10f), r, set1(0x1.277854p-7f));
  p = fma(p, r, set1(0x1.c91ce6p-5f));
  p = fma(p, r, set1(0x1.ebdb56p-3f));
  p = fma(p, r, set1(0x1.62e4bap-1f));
  p = fma(p, r, set1(1.0f));
  return times_exp2(p, t);
}
