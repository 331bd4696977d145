#include <immintrin.h>

#include "layers/ops/attention_blocks.h"

namespace snug {
namespace {

using V = __m256;
using I = __m256i;
constexpr int64_t kWidth = 8;
constexpr int kMaxVectors = 2, kMaxRows = 6;  // 12 sums, 2 of B, 1 of A: 15 of 16 registers
constexpr int kTurn = 4;  // against 1: forward 5 %, backward 4 % faster on Zen 3
constexpr bool kPairs = false;

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
inline V max_of(V a, V b) {
  return _mm256_max_ps(a, b);
}
inline V min_of(V a, V b) {
  return _mm256_min_ps(a, b);
}
inline V round_even(V x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V multiply_add(V a, V b, V c) {
  return fma(a, b, c);
}
// A unit is a float: there is nothing to pair.
inline V pair_lanes(V a, V) {
  return a;
}
inline V pair_rows(V a, V) {
  return a;
}
// p * 2^n in two exact steps but for the end of the range, where the second one rounds or overflows
// as a single one would. n is not below -126 where the result counts.
inline V times_exp2(V p, V n) {
  const I whole = _mm256_cvtps_epi32(min_of(n, set1(254.0f))), half = _mm256_srai_epi32(whole, 1);
  const auto power = [](I e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
  };
  return mul(mul(p, power(half)), power(_mm256_sub_epi32(whole, half)));
}
inline V zero_below(V x, V bound, V y) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, bound, _CMP_LT_OQ), y);
}
inline V zero_unless(uint32_t bits, V x) {
  const I lane = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  const I kept = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
  return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(kept, lane)), x);
}
inline I iset1(uint32_t x) {
  return _mm256_set1_epi32(static_cast<int>(x));
}
inline I evens() {
  return _mm256_set_epi64x(6, 4, 2, 0);
}
inline I iadd(I a, I b) {
  return _mm256_add_epi32(a, b);
}
inline I xor3(I a, I b, I c) {
  return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
inline I low_product(I a, I b) {
  return _mm256_mul_epu32(a, b);
}
inline I high_half(I a) {
  return _mm256_srli_epi64(a, 32);
}
inline I interleave(I even, I odd) {
  return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}
inline I lower_halves(I a) {
  return _mm256_slli_epi32(a, 16);
}
inline uint32_t at_least(I a, I bound) {
  const I above = _mm256_cmpeq_epi32(_mm256_max_epu32(a, bound), a);
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
}
inline uint32_t halves_equal(I a, I b) {
  const I equal = _mm256_cmpeq_epi16(a, b);
  return static_cast<uint32_t>(_mm_movemask_epi8(
      _mm_packs_epi16(_mm256_castsi256_si128(equal), _mm256_extracti128_si256(equal, 1))));
}

#include "layers/ops/attention_blocks_body.h"

}  // namespace

const AttentionBlocks& attention_blocks_avx2() {
  static constexpr AttentionBlocks kBlocks = {
      "avx2",  false,        1,           nullptr,       nullptr,
      product, softmax_step, scale_lanes, backward_tile, dropout_bits};
  return kBlocks;
}

bool attention_blocks_has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

bool attention_blocks_has_avx512_bf16() {
  static const bool has = attention_blocks_has_avx512() && __builtin_cpu_supports("avx512bf16");
  return has;
}

const AttentionBlocks& attention_blocks(DType dtype) {
  if (dtype == DType::bf16 && attention_blocks_has_amx()) return attention_blocks_amx();
  if (dtype == DType::bf16 && attention_blocks_has_avx512_bf16() && __builtin_cpu_is("amd"))
    return attention_blocks_avx512_bf16();
  return attention_blocks_has_avx512() ? attention_blocks_avx512() : attention_blocks_avx2();
}

}  // namespace snug
