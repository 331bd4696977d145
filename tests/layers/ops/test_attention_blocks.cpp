#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/core/rng.h"
#include "layers/ops/attention_blocks.h"

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

std::vector<const AttentionBlocks*> available() {
  std::vector<const AttentionBlocks*> all = {&attention_blocks_avx2()};
  if (attention_blocks_has_avx512()) all.push_back(&attention_blocks_avx512());
  return all;
}

// Both storage orders of A, every remainder of the tile's rows and columns, from zero and from C:
// each element is the chain of std::fma, bit for bit.
TEST(AttentionBlocks, AProductIsOneChainOfFusedMultiplyAdds) {
  const int64_t kSize = 96;
  const Tile a = random_tile(kSize * kSize, 1, 1), b = random_tile(kSize * kSize, 2, 1);
  const Tile before = random_tile(kSize * kSize, 3, 1);
  for (const AttentionBlocks* blocks : available())
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

TEST(AttentionBlocks, TheExponentialIsGoodToTwoUnits) {
  for (const AttentionBlocks* blocks : available()) {
    Tile s(16 * kLd), top(16, 0.0f), sum(16, 0.0f), factor(16);
    // Below a row of zeros, which are the maximum: every score in [-87.3, 0].
    for (int round = 0; round < 200; ++round) {
      Tile x(16 * kLd, 0.0f);
      for (int64_t k = 1; k < 16; ++k)
        for (int64_t i = 0; i < 16; ++i)
          x[static_cast<size_t>(k * kLd + i)] =
              -87.3f * uniform_from(static_cast<uint32_t>(mix64(round * 256 + k * 16 + i)));
      s = x;
      std::fill(sum.begin(), sum.end(), 0.0f);
      EXPECT_FALSE(blocks->softmax_step(s.data(), 16, 16, top.data(), sum.data(), factor.data()));
      for (size_t i = 0; i < 16; ++i)
        for (size_t k = 0; k < 16; ++k) {
          const double want = std::exp(static_cast<double>(x[k * kLd + i]));
          EXPECT_NEAR(s[k * kLd + i], want, 2.5e-7 * want) << x[k * kLd + i];
        }
    }
  }
}

TEST(AttentionBlocks, TheRunningSoftmaxKeepsTopAndSum) {
  for (const AttentionBlocks* blocks : available()) {
    const float kLow = -std::numeric_limits<float>::infinity();
    Tile top(16, kLow), sum(16, 0.0f), factor(16);
    const Tile x = random_tile(48 * kLd, 7, 3);
    for (int64_t k0 = 0; k0 < 48; k0 += 16) {
      Tile s(x.begin() + k0 * kLd, x.begin() + (k0 + 16) * kLd);
      blocks->softmax_step(s.data(), 16, 16, top.data(), sum.data(), factor.data());
    }
    for (size_t i = 0; i < 16; ++i) {
      double highest = -1e300, total = 0;
      for (size_t k = 0; k < 48; ++k) highest = std::max(highest, double{x[k * kLd + i]});
      for (size_t k = 0; k < 48; ++k) total += std::exp(x[k * kLd + i] - highest);
      EXPECT_EQ(top[i], static_cast<float>(highest));
      EXPECT_NEAR(sum[i], total, 1e-6 * total);
    }
  }
}

// A NaN or an overflowed score must reach the sum and the probabilities of its query, no others.
TEST(AttentionBlocks, NotANumberStaysAndHiddenIsZero) {
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const float kInf = std::numeric_limits<float>::infinity();
  for (const AttentionBlocks* blocks : available())
    for (const size_t row : {0, 1, 2}) {
      Tile s(3 * kLd, 0.5f), top(16, -kInf), sum(16, 0.0f), factor(16);
      s[row * kLd + 3] = kNan;
      s[row * kLd + 4] = kInf;
      s[row * kLd + 5] = -kInf;
      blocks->softmax_step(s.data(), 3, 16, top.data(), sum.data(), factor.data());
      EXPECT_TRUE(std::isnan(sum[3]));
      EXPECT_TRUE(std::isnan(sum[4]));
      EXPECT_EQ(sum[5], 2);
      EXPECT_EQ(s[row * kLd + 5], 0);
      EXPECT_EQ(sum[6], 3);
      Tile p(kLd, 0.0f), dp(kLd, 1.0f), lse(16, 0.0f), delta(16, 0.0f);
      p[0] = kNan;
      p[1] = -kInf;
      blocks->backward_tile(p.data(), dp.data(), nullptr, 1, 16, lse.data(), delta.data());
      EXPECT_TRUE(std::isnan(p[0]) && std::isnan(dp[0]));
      EXPECT_EQ(p[1], 0);
      EXPECT_EQ(dp[1], 0);
      EXPECT_EQ(p[2], 1);
    }
}

TEST(AttentionBlocks, DropoutMasksAreTheGeneratorsNumbers) {
  for (const AttentionBlocks* blocks : available()) {
    const RandomKey key = random_key(123456789012345ull, 77, 3);
    const uint64_t sample = 0x1234567890ull;
    Tile mask(64 * kLd, -1.0f);
    blocks->dropout_mask(mask.data(), 63, 48, key, sample, 1000, 5000, 0.4f, 1.5f);
    for (uint32_t k = 0; k < 64; ++k)
      for (uint32_t i = 0; i < 64; ++i) {
        const float u = uniform_from(random_block(key, sample, 1000 + i, 5000 + k / 4)[k % 4]);
        const float want = k >= 63 || i >= 48 ? -1.0f : u >= 0.4f ? 1.5f : 0.0f;
        EXPECT_EQ(mask[k * kLd + i], want) << k << " " << i;
      }
  }
}

TEST(AttentionBlocks, BothInstructionSetsGiveTheSameBits) {
  if (!attention_blocks_has_avx512()) GTEST_SKIP() << "this machine has no AVX-512";
  const AttentionBlocks *a = &attention_blocks_avx2(), *b = &attention_blocks_avx512();
  for (const double sd : {0.1, 3.0, 40.0}) {
    Tile s1 = random_tile(64 * kLd, 11, sd), s2 = s1, d1 = random_tile(64 * kLd, 12, 1), d2 = d1;
    const Tile mask = random_tile(64 * kLd, 13, 1), lse = random_tile(64, 14, sd),
               delta = random_tile(64, 15, 1);
    Tile top1(64, 0.3f), top2 = top1, sum1(64, 2.5f), sum2 = sum1, f1(64), f2(64);
    EXPECT_EQ(a->softmax_step(s1.data(), 61, 64, top1.data(), sum1.data(), f1.data()),
              b->softmax_step(s2.data(), 61, 64, top2.data(), sum2.data(), f2.data()));
    a->apply_mask(s1.data(), mask.data(), 61, 64);
    b->apply_mask(s2.data(), mask.data(), 61, 64);
    a->scale_lanes(s1.data(), 50, 48, f1.data());
    b->scale_lanes(s2.data(), 50, 48, f2.data());
    expect_same_bits(s1, s2);
    expect_same_bits(sum1, sum2);
    expect_same_bits(top1, top2);
    expect_same_bits(f1, f2);
    for (const float* m : {static_cast<const float*>(nullptr), mask.data()}) {
      a->backward_tile(s1.data(), d1.data(), m, 61, 64, lse.data(), delta.data());
      b->backward_tile(s2.data(), d2.data(), m, 61, 64, lse.data(), delta.data());
      expect_same_bits(s1, s2);
      expect_same_bits(d1, d2);
    }
  }
}

}  // namespace
}  // namespace snug::test
