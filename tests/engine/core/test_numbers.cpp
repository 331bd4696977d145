// Random numbers, transcendentals and loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "engine/core/parallel.h"
#include "engine/core/rng.h"

namespace snug {
namespace {

// The known answers that Random123 publishes for philox4x32-10.
TEST(Rng, PhiloxKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t f = 0xffffffff;
  EXPECT_EQ(philox({f, f, f, f}, f, f), (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// First outputs of splitmix64 from the state 0, as published with it.
TEST(Rng, Mix64KnownAnswers) {
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull);
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15ull), 0x6e789e6aa1b965f4ull);
}

TEST(Rng, EveryPartOfTheKeyAndCounterCounts) {
  const RandomKey key = random_key(42, 7, 3);
  std::set<std::pair<uint32_t, uint32_t>> keys;
  for (const RandomKey& k :
       {key, random_key(43, 7, 3), random_key(42 | 1ull << 40, 7, 3), random_key(42, 8, 3),
        random_key(42, 7 | 1ull << 40, 3), random_key(42, 7, 4)})
    keys.insert({k.k0, k.k1});
  EXPECT_EQ(keys.size(), 6u);
  std::set<Philox4> blocks;
  for (const Philox4& b :
       {random_block(key, 5, 6, 7), random_block(key, 4, 6, 7), random_block(key, 5, 5, 7),
        random_block(key, 5, 6, 6), random_block(key, 5 | 1ull << 40, 6, 7)})
    blocks.insert(b);
  EXPECT_EQ(blocks.size(), 5u);
  EXPECT_EQ(random_block(key, 5, 6, 7), random_block(random_key(42, 7, 3), 5, 6, 7));
}

// Halves of two blocks: every channel has its own place, and the lower half counts.
TEST(Rng, NumbersOfChannels) {
  const RandomKey key = random_key(42, 7, 3);
  const Philox4 upper = random_block(key, 5, 6, 9), lower = random_block(key, 5, 6, 0x80000009u);
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t number = channel_number(key, 5, 6, 72 + i);
    EXPECT_EQ(number >> 16, i % 2 == 0 ? upper[i / 2] & 0xffff : upper[i / 2] >> 16) << i;
    EXPECT_EQ(number & 0xffff, i % 2 == 0 ? lower[i / 2] & 0xffff : lower[i / 2] >> 16) << i;
    EXPECT_TRUE(channel_at_least(key, 5, 6, 72 + i, number));
    EXPECT_FALSE(channel_at_least(key, 5, 6, 72 + i, number + 1));
  }
}

TEST(Rng, UniformRange) {
  EXPECT_EQ(uniform_from(0), 0.0f);
  EXPECT_EQ(uniform_from(0x100), 0x1p-24f);
  EXPECT_EQ(uniform_from(0xffffffffu), 1.0f - 0x1p-24f);
}

// With n draws the mean has the deviation 1/sqrt(n), the variance sqrt(2/n), the third moment
// sqrt(15/n) and the fourth sqrt(96/n); five deviations are allowed.
TEST(Rng, NormalMoments) {
  const int n = 400000;
  double sum[5] = {}, cross = 0;
  for (int i = 0; i < n / 2; ++i) {
    const Philox4 u = philox({static_cast<uint32_t>(i), 0, 0, 0}, 1, 2);
    double a = 0, b = 0;
    normal_pair(u[0], u[1], &a, &b);
    for (const double z : {a, b})
      for (int k = 1; k <= 4; ++k) sum[k] += std::pow(z, k) / n;
    cross += a * b / (n / 2);
  }
  EXPECT_NEAR(sum[1], 0, 5 / std::sqrt(n));
  EXPECT_NEAR(sum[2], 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(sum[3], 0, 5 * std::sqrt(15.0 / n));
  EXPECT_NEAR(sum[4], 3, 5 * std::sqrt(96.0 / n));
  EXPECT_NEAR(cross, 0, 5 / std::sqrt(n / 2));
}

TEST(Rng, NormalIsFiniteAtTheEnds) {
  for (const uint32_t a : {0u, 1u, 0xffffffffu})
    for (const uint32_t b : {0u, 1u, 0xffffffffu}) {
      double z0 = 0, z1 = 0;
      normal_pair(a, b, &z0, &z1);
      EXPECT_TRUE(std::isfinite(z0) && std::isfinite(z1)) << a << " " << b;
      EXPECT_LT(std::hypot(z0, z1), 6.7);  // sqrt(64 ln 2) = 6.66
    }
}

TEST(Parallel, EveryIndexOnceForAnyThreadCount) {
  for (const int threads : {-1, 0, 1, 2, 3, 7, 16})
    for (const int64_t n : {0, 1, 2, 3, 64, 1001}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
      parallel_for(threads, n, [&](int64_t i) { ++hits[static_cast<size_t>(i)]; });
      for (const auto& h : hits) ASSERT_EQ(h, 1) << threads << " threads, n " << n;
    }
}

TEST(Parallel, ChunksCoverTheRangeAndDoNotDependOnThreads) {
  for (const int64_t n : {0, 1, 9, 10, 11, 999})
    for (const int64_t grain : {1, 10, 5000}) {
      std::set<std::pair<int64_t, int64_t>> first;
      for (const int threads : {1, 2, 5}) {
        std::vector<std::pair<int64_t, int64_t>> chunks(
            static_cast<size_t>((n + grain - 1) / grain));
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        parallel_chunks(threads, n, grain, [&](int64_t begin, int64_t end) {
          chunks[static_cast<size_t>(begin / grain)] = {begin, end};
          for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
        });
        for (const auto& h : hits) ASSERT_EQ(h, 1);
        const std::set<std::pair<int64_t, int64_t>> now(chunks.begin(), chunks.end());
        if (threads == 1) first = now;
        EXPECT_EQ(now, first);
      }
    }
}

TEST(Parallel, SlotsAreBelowTheThreadCountAndNotShared) {
  for (const int threads : {1, 2, 4}) {
    std::vector<std::atomic<int>> hits(501), busy(static_cast<size_t>(threads));
    std::atomic<bool> good = true;
    parallel_slots(threads, 501, [&](int64_t i, int slot) {
      if (slot < 0 || slot >= threads || busy[static_cast<size_t>(slot)]++ != 0) {
        good = false;
        return;
      }
      ++hits[static_cast<size_t>(i)];
      --busy[static_cast<size_t>(slot)];
    });
    EXPECT_TRUE(good);
    for (const auto& h : hits) ASSERT_EQ(h, 1);
  }
}

}  // namespace
}  // namespace snug
