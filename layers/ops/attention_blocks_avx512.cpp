// Compiled for AVX-512 whatever the flags of the build: called only where the CPU has it. Headers
// come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "layers/ops/attention_blocks.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

namespace snug {
namespace {

using V = __m512;
using I = __m512i;
constexpr int64_t kWidth = 16;
constexpr int kMaxVectors = 4, kMaxRows = 6;  // 24 sums, 4 of B, 1 of A: 29 of 32 registers
constexpr uint32_t kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

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
inline V fnma(V a, V b, V c) {
  return _mm512_fnmadd_ps(a, b, c);
}
inline V max_of(V a, V b) {
  return _mm512_max_ps(a, b);
}
inline V min_of(V a, V b) {
  return _mm512_min_ps(a, b);
}
inline V round_even(V x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT);
}
inline V exp2_of(V n) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
inline V zero_below(V x, V bound, V y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), y);
}
inline I iset1(uint32_t x) {
  return _mm512_set1_epi32(static_cast<int>(x));
}
inline I iload(const uint32_t* p) {
  return _mm512_loadu_si512(p);
}
inline I iadd(I a, I b) {
  return _mm512_add_epi32(a, b);
}
inline I ixor(I a, I b) {
  return _mm512_xor_si512(a, b);
}
inline void mul_wide(I a, uint32_t m, I* high, I* low) {
  const I even = _mm512_mul_epu32(a, iset1(m));
  const I odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), iset1(m));
  *high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
  *low = _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
}
inline V keep_from(I u, float dropout, float kept) {
  const V uniform = mul(_mm512_cvtepi32_ps(_mm512_srli_epi32(u, 8)), set1(0x1p-24f));
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(uniform, set1(dropout), _CMP_GE_OQ), set1(kept));
}

#include "layers/ops/attention_blocks_body.h"

constexpr AttentionBlocks kBlocks = {product,    softmax_step,  scale_lanes,
                                     apply_mask, backward_tile, dropout_mask};

}  // namespace

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const AttentionBlocks& attention_blocks_avx512() {
  return kBlocks;
}

}  // namespace snug
