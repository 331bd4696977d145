// The numbers of dropout, eight counters at a time; included by the rows of AVX-512, inside their
// namespace, before row_loops_drop.h.
#pragma once

// Eight 64-bit lanes, and what the generator does with them.
using U = __m512i;
constexpr int kCounterVectors = 4;
inline U uset(uint64_t x) {
  return _mm512_set1_epi64(static_cast<int64_t>(x));
}
inline U uadd(U a, U b) {
  return _mm512_add_epi64(a, b);
}
inline U umul(U a, U b) {
  return _mm512_mul_epu32(a, b);
}
inline U ushr32(U a) {
  return _mm512_srli_epi64(a, 32);
}
inline U ushl32(U a) {
  return _mm512_slli_epi64(a, 32);
}
inline U uxor3(U a, U b, U c) {
  return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
// The number of each lane's counter, so that unpacking leaves them in order.
inline U counter_steps() {
  return _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
}
// Words 0 and 2 in the low halves, 1 and 3 in the high ones, of eight counters: 64 channels, those
// whose half is at least `upper` in bits, those where it is equal in open.
inline void keep_bits(uint32_t* bits, uint32_t* open, U w0, U w1, U w2, U w3, uint32_t upper) {
  const U t = _mm512_set1_epi16(static_cast<int16_t>(upper));
  const U w01 = _mm512_mask_mov_epi32(w0, 0xAAAA, w1), w23 = _mm512_mask_mov_epi32(w2, 0xAAAA, w3);
  const U first = _mm512_unpacklo_epi64(w01, w23), second = _mm512_unpackhi_epi64(w01, w23);
  bits[0] = _mm512_cmpge_epu16_mask(first, t);
  bits[1] = _mm512_cmpge_epu16_mask(second, t);
  open[0] = _mm512_cmpeq_epu16_mask(first, t);
  open[1] = _mm512_cmpeq_epu16_mask(second, t);
}
