#include <immintrin.h>

#include "layers/ops/attention_blocks.h"

namespace snug {
namespace {

using V = __m256;
using I = __m256i;
constexpr int64_t kWidth = 8;
constexpr int kMaxVectors = 2, kMaxRows = 6;  // 12 sums, 2 of B, 1 of A: 15 of 16 registers
constexpr uint32_t kLaneNumbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};

inline V load(const float* p) {
  return _mm256_loadu_ps(p);
}
inline void store(float* p, V x) {
  _mm256_storeu_ps(p, x);
}
inline V set1(float x) {
  return _mm256_set1_ps(x);
}
inline V add(V a, V b) {
  return _mm256_add_ps(a, b);
}
inline V sub(V a, V b) {
  return _mm256_sub_ps(a, b);
}
inline V mul(V a, V b) {
  return _mm256_mul_ps(a, b);
}
inline V fma(V a, V b, V c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline V fnma(V a, V b, V c) {
  return _mm256_fnmadd_ps(a, b, c);
}
inline V max_of(V a, V b) {
  return _mm256_max_ps(a, b);
}
inline V min_of(V a, V b) {
  return _mm256_min_ps(a, b);
}
inline V round_even(V x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V exp2_of(V n) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline V zero_below(V x, V bound, V y) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, bound, _CMP_LT_OQ), y);
}
inline I iset1(uint32_t x) {
  return _mm256_set1_epi32(static_cast<int>(x));
}
inline I iload(const uint32_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const I*>(p));
}
inline I iadd(I a, I b) {
  return _mm256_add_epi32(a, b);
}
inline I ixor(I a, I b) {
  return _mm256_xor_si256(a, b);
}
inline void mul_wide(I a, uint32_t m, I* high, I* low) {
  const I even = _mm256_mul_epu32(a, iset1(m));
  const I odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), iset1(m));
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
inline V keep_from(I u, float dropout, float kept) {
  const V uniform = mul(_mm256_cvtepi32_ps(_mm256_srli_epi32(u, 8)), set1(0x1p-24f));
  return _mm256_and_ps(_mm256_cmp_ps(uniform, set1(dropout), _CMP_GE_OQ), set1(kept));
}

#include "layers/ops/attention_blocks_body.h"

}  // namespace

const AttentionBlocks& attention_blocks_avx2() {
  static constexpr AttentionBlocks kBlocks = {product,    softmax_step,  scale_lanes,
                                              apply_mask, backward_tile, dropout_mask};
  return kBlocks;
}

bool attention_blocks_has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

const AttentionBlocks& attention_blocks() {
  return attention_blocks_has_avx512() ? attention_blocks_avx512() : attention_blocks_avx2();
}

}  // namespace snug
