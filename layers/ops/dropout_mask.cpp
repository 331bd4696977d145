#include "layers/ops/dropout_mask.h"

#include <immintrin.h>

namespace snug {

// random_block() for sixteen values of channel / 4 side by side. A word of a counter lies in the
// low half of a 64-bit lane, where the 32 x 32 -> 64 product wants it; what is in the high half is
// never read, so the low word of a product needs no masking.
void DropoutMask::factors(float* factor, int64_t sample_in_batch, int64_t position,
                          int64_t begin) const {
  constexpr int kVectors = kMaskChannels / 16;  // of four counters each
  const uint64_t sample = first_sample_ + static_cast<uint64_t>(sample_in_batch);
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    c0[v] = _mm256_add_epi64(_mm256_set1_epi64x(begin / 4 + 4 * v), _mm256_set_epi64x(3, 2, 1, 0));
    c1[v] = _mm256_set1_epi64x(position);
    c2[v] = _mm256_set1_epi64x(static_cast<int64_t>(sample));
    c3[v] = _mm256_set1_epi64x(static_cast<int64_t>(sample >> 32));
  }
  uint32_t k0 = key_.k0, k1 = key_.k1;
  for (int round = 0; round < 10; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
    for (int v = 0; v < kVectors; ++v) {
      const __m256i p0 = _mm256_mul_epu32(c0[v], m0), p1 = _mm256_mul_epu32(c2[v], m1);
      c0[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[v]), key0);
      c1[v] = p1;
      c2[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[v]), key1);
      c3[v] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }

  const __m256 p = _mm256_set1_ps(p_), kept = _mm256_set1_ps(kept_),
               unit = _mm256_set1_ps(0x1p-24f);
  const auto store = [&](float* to, __m256i u) {
    const __m256 uniform = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(u, 8)), unit);
    _mm256_storeu_ps(to, _mm256_and_ps(_mm256_cmp_ps(uniform, p, _CMP_GE_OQ), kept));
  };
  for (int v = 0; v < kVectors; ++v) {
    // Four words of counter i become the channels 4 i to 4 i + 3.
    const __m256i c01 = _mm256_blend_epi32(c0[v], _mm256_slli_epi64(c1[v], 32), 0xAA);
    const __m256i c23 = _mm256_blend_epi32(c2[v], _mm256_slli_epi64(c3[v], 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(c01, c23), odd = _mm256_unpackhi_epi64(c01, c23);
    store(factor + 16 * v, _mm256_permute2x128_si256(even, odd, 0x20));
    store(factor + 16 * v + 8, _mm256_permute2x128_si256(even, odd, 0x31));
  }
}

}  // namespace snug
