#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/core/rng.h"
#include "layers/ops/attention_blocks.h"
#include "layers/ops/dropout_mask.h"
#include "tests/support/reference/dropout.h"

namespace snug::test {
namespace {

constexpr int64_t kLd = kAttentionBlock;
using Tile = std::vector<float>;

Tile random_tile(int64_t n, uint32_t seed, double sd) {
  Tile t(static_cast<size_t>(n));
  for (size_t i = 0; i < t.size(); ++i) {
    const Philox4 u = philox({static_cast<uint32_t>(i), 0, 0, 0}, seed, 1);
    double a = 0, b = 0;
    normal_pair(u[0], u[1], &a, &b);
    t[i] = static_cast<float>(sd * a);
  }
  return t;
}

// Bits, so that two NaN are equal and two zeros of unlike sign are not.
void expect_same_bits(const Tile& a, const Tile& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

// What this machine can run; with pairs only if asked for.
std::vector<const AttentionBlocks*> available(bool with_pairs) {
  std::vector<const AttentionBlocks*> all = {&attention_blocks_avx2()};
  if (attention_blocks_has_avx512()) all.push_back(&attention_blocks_avx512());
  if (with_pairs && attention_blocks_has_avx512_bf16())
    all.push_back(&attention_blocks_avx512_bf16());
  return all;
}

constexpr float kLog2E = 1.44269504f;

// Units of two values: the first in the low half.
float unit_of(float low, float high) {
  return std::bit_cast<float>(from_f32<bf16>(low).bits |
                              static_cast<uint32_t>(from_f32<bf16>(high).bits) << 16);
}
float half_of(float unit, bool high) {
  const auto bits = std::bit_cast<uint32_t>(unit);
  return to_f32(bf16{static_cast<uint16_t>(high ? bits >> 16 : bits)});
}

// What softmax_step left of key k, and backward_tile of query i: units along keys or queries.
float at_key(const AttentionBlocks& blocks, const Tile& t, size_t k, size_t lane) {
  return blocks.pairs ? half_of(t[k / 2 * kLd + lane], k % 2 != 0) : t[k * kLd + lane];
}
float at_query(const AttentionBlocks& blocks, const Tile& t, size_t k, size_t lane) {
  return blocks.pairs ? half_of(t[k * kLd + lane / 2], lane % 2 != 0) : t[k * kLd + lane];
}

// Both storage orders of A, every remainder of the tile's rows and columns, from zero and from C:
// each element is the chain of std::fma, bit for bit.
TEST(AttentionBlocks, AProductIsOneChainOfFusedMultiplyAdds) {
  const int64_t kSize = 96;
  const Tile a = random_tile(kSize * kSize, 1, 1), b = random_tile(kSize * kSize, 2, 1);
  const Tile before = random_tile(kSize * kSize, 3, 1);
  for (const AttentionBlocks* blocks : available(false))
    for (const int64_t M : {1, 5, 6, 7, 14, 64})
      for (const int64_t N : {16, 32, 48, 64, 80})
        for (const int64_t K : {1, 33})
          for (const bool turned : {false, true})
            for (const bool add : {false, true}) {
              const int64_t a_row = turned ? 1 : kSize, a_col = turned ? kSize : 1;
              Tile got = before, want = before;
              blocks->product(got.data(), kSize, a.data(), a_row, a_col, b.data(), kSize, M, N, K,
                              add);
              for (int64_t m = 0; m < M; ++m)
                for (int64_t n = 0; n < N; ++n) {
                  float& c = want[static_cast<size_t>(m * kSize + n)];
                  if (!add) c = 0;
                  for (int64_t k = 0; k < K; ++k)
                    c = std::fma(a[static_cast<size_t>(m * a_row + k * a_col)],
                                 b[static_cast<size_t>(k * kSize + n)], c);
                }
              expect_same_bits(got, want);
            }
}

// The same chain over pairs. VDPBF16PS is documented as two fused steps, the odd product first,
// with subnormals as zeros, which these operands do not reach.
TEST(AttentionBlocks, AProductOfPairsIsOneChainToo) {
  if (!attention_blocks_has_avx512_bf16()) GTEST_SKIP() << "this machine has no AVX512_BF16";
  const int64_t kSize = 80;
  const AttentionBlocks& blocks = attention_blocks_avx512_bf16();
  const Tile x = random_tile(2 * kSize * kSize, 1, 1), y = random_tile(2 * kSize * kSize, 2, 1);
  const Tile before = random_tile(kSize * kSize, 3, 1);
  Tile a(before.size()), b(before.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = unit_of(x[2 * i], x[2 * i + 1]);
    b[i] = unit_of(y[2 * i], y[2 * i + 1]);
  }
  for (const int64_t M : {1, 7, 64})
    for (const int64_t N : {16, 48, 64})
      for (const bool turned : {false, true})
        for (const bool add : {false, true}) {
          const int64_t a_row = turned ? 1 : kSize, a_col = turned ? kSize : 1, K = 33;
          Tile got = before, want = before;
          blocks.product(got.data(), kSize, a.data(), a_row, a_col, b.data(), kSize, M, N, K, add);
          for (int64_t m = 0; m < M; ++m)
            for (int64_t n = 0; n < N; ++n) {
              float& c = want[static_cast<size_t>(m * kSize + n)];
              if (!add) c = 0;
              for (int64_t k = 0; k < K; ++k)
                for (const bool high : {true, false})
                  c = std::fma(half_of(a[static_cast<size_t>(m * a_row + k * a_col)], high),
                               half_of(b[static_cast<size_t>(k * kSize + n)], high), c);
            }
          expect_same_bits(got, want);
        }
}

// e^x as the passes take it: the exponent times log2(e), one rounding of which is relative to the
// exponent, as the rounding of a score is: |x| 2^-24 beside the polynomial's own error.
TEST(AttentionBlocks, TheExponentialIsGood) {
  for (const AttentionBlocks* blocks : available(true))
    for (const float factor2 : {1.0f, kLog2E}) {
      const double polynomial = blocks->pairs ? 2.0e-7 : 1.5e-7;
      const double stored = blocks->pairs ? 0x1p-8 : 0;  // p is rounded to bf16
      Tile delta(16, -1.0f), lse2(16, 0.0f), unused(16 * kLd);
      for (int round = 0; round < 200; ++round) {
        Tile x(16 * kLd, 0.0f);
        for (int64_t k = 0; k < 16; ++k)
          for (int64_t i = 0; i < 16; ++i)
            x[static_cast<size_t>(k * kLd + i)] =
                -87.3f * uniform_from(static_cast<uint32_t>(mix64(round * 256 + k * 16 + i)));
        Tile s = x, dp(16 * kLd, 0.0f), top(16, 0.0f), sum(16, 0.0f), shrink(16);
        EXPECT_FALSE(blocks->softmax_step(s.data(), 16, 16, factor2, top.data(), sum.data(),
                                          shrink.data(), nullptr));
        Tile s2 = x;
        // ds = p (0 - (-1)): the other way to p.
        blocks->backward_tile(s2.data(), dp.data(), unused.data(), 16, 16, factor2, lse2.data(),
                              delta.data(), nullptr, 1);
        for (size_t i = 0; i < 16; ++i) {
          double total = 0, worst = 0;
          for (size_t k = 0; k < 16; ++k) {
            const double t = static_cast<double>(x[k * kLd + i]) * factor2;
            const double want = std::exp2(t);
            const double allowed = (polynomial + std::fabs(t) * 0x1p-24) * want;
            total += want;
            worst += allowed;
            for (const float got : {at_key(*blocks, s, k, i), at_query(*blocks, s2, k, i),
                                    at_query(*blocks, dp, k, i)})
              EXPECT_NEAR(got, want, allowed + stored * want) << t;
          }
          EXPECT_NEAR(sum[i], total, worst + 16 * 0x1p-24 * total);
        }
      }
    }
}

TEST(AttentionBlocks, TheRunningSoftmaxKeepsTopAndSum) {
  for (const AttentionBlocks* blocks : available(true))
    for (const int64_t step : {5, 16}) {
      const float kLow = -std::numeric_limits<float>::infinity();
      Tile top(16, kLow), sum(16, 0.0f), shrink(16);
      const Tile x = random_tile(48 * kLd, 7, 3);
      for (int64_t k0 = 0; k0 < 48; k0 += step) {
        const int64_t keys = std::min(step, 48 - k0);
        Tile s(x.begin() + k0 * kLd, x.begin() + (k0 + keys) * kLd);
        const Tile before = top;
        const bool changed = blocks->softmax_step(s.data(), keys, 16, 0.5f, top.data(), sum.data(),
                                                  shrink.data(), nullptr);
        EXPECT_EQ(changed, before != top);
        for (size_t i = 0; i < 16; ++i)
          EXPECT_NEAR(shrink[i], std::exp2(before[i] - top[i]), 6e-7 * shrink[i]);
        // The partner of an odd last key.
        if (blocks->pairs && keys % 2 != 0) {
          EXPECT_EQ(at_key(*blocks, s, static_cast<size_t>(keys), 3), 0);
        }
      }
      for (size_t i = 0; i < 16; ++i) {
        double highest = -1e300, total = 0;
        for (size_t k = 0; k < 48; ++k) highest = std::max(highest, double{x[k * kLd + i]});
        for (size_t k = 0; k < 48; ++k) total += std::exp2(0.5 * (x[k * kLd + i] - highest));
        EXPECT_EQ(top[i], 0.5f * static_cast<float>(highest));
        EXPECT_NEAR(sum[i], total, 1e-6 * total);
      }
    }
}

// A NaN or an overflowed score must reach the sum and the probabilities of its query, no others.
TEST(AttentionBlocks, NotANumberStaysAndHiddenIsZero) {
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const float kInf = std::numeric_limits<float>::infinity();
  for (const AttentionBlocks* blocks : available(true))
    for (const size_t row : {0, 1, 2}) {
      Tile s(4 * kLd, 0.5f), top(16, -kInf), sum(16, 0.0f), shrink(16);
      s[row * kLd + 3] = kNan;
      s[row * kLd + 4] = kInf;
      s[row * kLd + 5] = -kInf;
      blocks->softmax_step(s.data(), 3, 16, kLog2E, top.data(), sum.data(), shrink.data(), nullptr);
      EXPECT_TRUE(std::isnan(sum[3]));
      EXPECT_TRUE(std::isnan(at_key(*blocks, s, row, 3)));
      EXPECT_TRUE(std::isnan(sum[4]));
      EXPECT_EQ(sum[5], 2);
      EXPECT_EQ(at_key(*blocks, s, row, 5), 0);
      EXPECT_EQ(sum[6], 3);
      Tile p(kLd, 0.0f), dp(kLd, 1.0f), ds(kLd), lse2(16, 0.0f), delta(16, 0.0f);
      p[0] = kNan;
      p[1] = -kInf;
      blocks->backward_tile(p.data(), dp.data(), ds.data(), 1, 16, kLog2E, lse2.data(),
                            delta.data(), nullptr, 1);
      EXPECT_TRUE(std::isnan(at_query(*blocks, p, 0, 0)));
      EXPECT_TRUE(std::isnan(at_query(*blocks, dp, 0, 0)));
      EXPECT_EQ(at_query(*blocks, p, 0, 1), 0);
      EXPECT_EQ(at_query(*blocks, dp, 0, 1), 0);
      EXPECT_EQ(at_query(*blocks, p, 0, 2), 1);
    }
}

// Every size of a tile's remainder, with and without dropout: s, dp and the units along the keys.
TEST(AttentionBlocks, ABackwardTileIsTheFormula) {
  for (const AttentionBlocks* blocks : available(true))
    for (const int64_t keys : {1, 2, 7, 64})
      for (const int64_t lanes : {16, 32, 48, 64})
        for (const bool dropout : {false, true}) {
          const Tile s0 = random_tile(64 * kLd, 21, 2), d0 = random_tile(64 * kLd, 22, 1);
          const Tile lse2 = random_tile(64, 23, 1), delta = random_tile(64, 24, 1);
          std::vector<uint16_t> keep(static_cast<size_t>(keys * kAttentionWords));
          for (size_t i = 0; i < keep.size(); ++i) keep[i] = static_cast<uint16_t>(mix64(i));
          Tile s = s0, dp = d0, pairs(32 * kLd, -7.0f);
          blocks->backward_tile(s.data(), dp.data(), pairs.data(), keys, lanes, 0.7f, lse2.data(),
                                delta.data(), dropout ? keep.data() : nullptr, 1.25f);
          const double allowed = blocks->pairs ? 0x1p-8 + 1e-6 : 1e-6;
          for (size_t k = 0; k < static_cast<size_t>(keys); ++k)
            for (size_t i = 0; i < static_cast<size_t>(lanes); ++i) {
              const bool kept = !dropout || (keep[k * kAttentionWords + i / 16] >> i % 16 & 1) != 0;
              const double m = !dropout ? 1 : kept ? 1.25 : 0;
              const double p = std::exp2(double{0.7f} * s0[k * kLd + i] - lse2[i]);
              const double ds = p * (m * d0[k * kLd + i] - delta[i]);
              const double size = p * (std::fabs(m * d0[k * kLd + i]) + std::fabs(delta[i]));
              EXPECT_NEAR(at_query(*blocks, s, k, i), kept ? p : 0, allowed * p);
              EXPECT_NEAR(at_query(*blocks, dp, k, i), ds, allowed * size);
              if (blocks->pairs) {
                EXPECT_EQ(at_key(*blocks, pairs, k, i), at_query(*blocks, dp, k, i));
              }
            }
          if (blocks->pairs && keys % 2 != 0) {
            EXPECT_EQ(at_key(*blocks, pairs, static_cast<size_t>(keys), 5), 0);
          }
        }
}

TEST(AttentionBlocks, DropoutBitsAreTheGeneratorsNumbers) {
  const RandomKey key = random_key(123456789012345ull, 77, 3);
  const uint64_t sample = 0x1234567890ull;
  std::vector<float> bounds = {0.4f, 0.1f, 0.5f, 0x1p-24f, 0x1.8p-24f, 1 - 0x1p-24f};
  // Bounds that are a number, and the next: its upper half alone does not decide.
  for (const uint32_t k : {0u, 5u, 22u, 62u})
    for (const uint32_t i : {0u, 7u, 21u, 47u}) {
      bounds.push_back(channel_uniform(key, sample, 1000 + i, 20000 + k));
      bounds.push_back(std::nextafter(bounds.back(), 1.0f));
    }
  for (const AttentionBlocks* blocks : available(true))
    for (const float dropout : bounds) {
      std::vector<uint16_t> keep(64 * kAttentionWords, 0xA5A5);
      blocks->dropout_bits(keep.data(), 63, 48, key, sample, 1000, 20000,
                           dropout_threshold(dropout));
      for (uint32_t k = 0; k < 64; ++k)
        for (uint32_t i = 0; i < 64; ++i) {
          const float u = channel_uniform(key, sample, 1000 + i, 20000 + k);
          const bool want = k >= 63 || i >= 48 ? (0xA5A5 >> i % 16 & 1) != 0 : u >= dropout;
          EXPECT_EQ(keep[k * kAttentionWords + i / 16] >> i % 16 & 1, want) << k << " " << i;
        }
    }
  // The first number that is kept, exactly.
  for (const float dropout : {0.1f, 0.5f, 0x1p-24f, 0x1p-30f, 1 - 0x1p-24f}) {
    const uint32_t least = dropout_threshold(dropout);
    EXPECT_GE(uniform_from(least), dropout);
    EXPECT_LT(uniform_from(least - 1), dropout);
  }
}

// Dropout zeroes what goes into the product and not the sum.
TEST(AttentionBlocks, DropoutLeavesTheSumAlone) {
  for (const AttentionBlocks* blocks : available(true))
    for (const int64_t keys : {7, 8}) {
      const Tile x = random_tile(8 * kLd, 31, 1);
      std::vector<uint16_t> keep(8 * kAttentionWords);
      for (size_t i = 0; i < keep.size(); ++i) keep[i] = static_cast<uint16_t>(mix64(i + 99));
      Tile a = x, b = x, top_a(64, -1.0f), top_b(64, -1.0f), sum_a(64, 1.0f), sum_b(64, 1.0f);
      Tile shrink(64);
      blocks->softmax_step(a.data(), keys, 48, 1, top_a.data(), sum_a.data(), shrink.data(),
                           nullptr);
      blocks->softmax_step(b.data(), keys, 48, 1, top_b.data(), sum_b.data(), shrink.data(),
                           keep.data());
      expect_same_bits(sum_a, sum_b);
      for (size_t k = 0; k < static_cast<size_t>(keys); ++k)
        for (size_t i = 0; i < 48; ++i)
          EXPECT_EQ(at_key(*blocks, b, k, i),
                    (keep[k * kAttentionWords + i / 16] >> i % 16 & 1) != 0
                        ? at_key(*blocks, a, k, i)
                        : 0);
    }
}

TEST(AttentionBlocks, BothInstructionSetsGiveTheSameBits) {
  if (!attention_blocks_has_avx512()) GTEST_SKIP() << "this machine has no AVX-512";
  const AttentionBlocks *a = &attention_blocks_avx2(), *b = &attention_blocks_avx512();
  std::vector<uint16_t> bits(64 * kAttentionWords);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(mix64(i));
  for (const double sd : {0.1, 3.0, 40.0, 1e4})
    for (const uint16_t* keep :
         {static_cast<const uint16_t*>(nullptr), static_cast<const uint16_t*>(bits.data())}) {
      Tile s1 = random_tile(64 * kLd, 11, sd), s2 = s1;
      Tile d1 = random_tile(64 * kLd, 12, 1), d2 = d1, none(1);
      const Tile lse2 = random_tile(64, 14, sd), delta = random_tile(64, 15, 1);
      Tile top1(64, 0.3f), top2 = top1, sum1(64, 2.5f), sum2 = sum1, f1(64), f2(64);
      // With 1e4 these overflow on both.
      Tile t1 = s1, t2 = s1;
      EXPECT_EQ(
          a->softmax_step(s1.data(), 61, 64, 0.3f, top1.data(), sum1.data(), f1.data(), keep),
          b->softmax_step(s2.data(), 61, 64, 0.3f, top2.data(), sum2.data(), f2.data(), keep));
      a->scale_lanes(s1.data(), 50, 48, f1.data());
      b->scale_lanes(s2.data(), 50, 48, f2.data());
      expect_same_bits(s1, s2);
      expect_same_bits(sum1, sum2);
      expect_same_bits(top1, top2);
      expect_same_bits(f1, f2);
      a->backward_tile(t1.data(), d1.data(), none.data(), 61, 64, 0.3f, lse2.data(), delta.data(),
                       keep, 1.5f);
      b->backward_tile(t2.data(), d2.data(), none.data(), 61, 64, 0.3f, lse2.data(), delta.data(),
                       keep, 1.5f);
      for (size_t i = 0; i < t1.size(); ++i) {
        EXPECT_TRUE(t1[i] == t2[i] || (std::isnan(t1[i]) && std::isnan(t2[i]))) << i;
        EXPECT_TRUE(d1[i] == d2[i] || (std::isnan(d1[i]) && std::isnan(d2[i]))) << i;
      }
    }
}

}  // namespace
}  // namespace snug::test
