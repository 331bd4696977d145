// The fast normal numbers are, float by float, those of the plain formula.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "engine/core/rng.h"

namespace snug {
namespace {

uint32_t bits_of(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  return u;
}

void expect_plain(const std::vector<uint32_t>& u, double std) {
  const auto pairs = static_cast<int64_t>(u.size() / 2);
  std::vector<float> fast(u.size(), -7.0f);
  normal_floats(u.data(), pairs, std, fast.data());
  int64_t wrong = 0;
  for (int64_t i = 0; i < pairs; ++i) {
    double z[2];
    normal_pair(u[static_cast<size_t>(2 * i)], u[static_cast<size_t>(2 * i + 1)], &z[0], &z[1]);
    for (int k = 0; k < 2; ++k) {
      const float plain = static_cast<float>(z[k] * std),
                  got = fast[static_cast<size_t>(2 * i + k)];
      if (bits_of(plain) != bits_of(got) && wrong++ < 5)
        ADD_FAILURE() << u[static_cast<size_t>(2 * i)] << " " << u[static_cast<size_t>(2 * i + 1)]
                      << " lane " << k << ": " << plain << " against " << got;
    }
  }
  EXPECT_EQ(wrong, 0);
}

// Where the logarithm ends and changes its exponent, and where sine and cosine pass zero, one and
// the borders of the quadrants: both words from lists of such values, each with its neighbours.
TEST(NormalFloats, AtTheEdges) {
  std::vector<uint32_t> first, second;
  for (int e = 0; e <= 32; ++e)
    for (int d = -2; d <= 2; ++d) {
      first.push_back(static_cast<uint32_t>((uint64_t{1} << e) + static_cast<uint64_t>(d)));
      // sqrt(2) 2^e: where the reduced argument changes sides.
      first.push_back(static_cast<uint32_t>(std::ldexp(M_SQRT2, e) + d));
    }
  for (uint64_t eighth = 0; eighth <= 8; ++eighth)
    for (int d = -3; d <= 3; ++d)
      second.push_back(static_cast<uint32_t>((eighth << 29) + static_cast<uint64_t>(d)));
  std::vector<uint32_t> u;
  for (const uint32_t a : first)
    for (const uint32_t b : second) u.insert(u.end(), {a, b});
  for (const double std : {1.0, 0.02, 0.00408248290463863, 1e-30, 3e-39, 1e38})
    expect_plain(u, std);
}

TEST(NormalFloats, AnyNumberOfPairs) {
  for (size_t pairs = 0; pairs < 10; ++pairs) {
    std::vector<uint32_t> u;
    for (size_t i = 0; i < 2 * pairs; ++i)
      u.push_back(static_cast<uint32_t>(mix64(i + 100 * pairs)));
    expect_plain(u, 0.02);
  }
}

// 4 million values: about one of them has its rounding left open.
TEST(NormalFloats, AtRandom) {
  std::vector<uint32_t> u;
  for (uint64_t i = 0; i < (uint64_t{1} << 21); ++i) {
    const uint64_t x = mix64(i);
    u.insert(u.end(), {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)});
  }
  expect_plain(u, 0.02);
}

// Deviations chosen so that a product falls half way between two floats, give or take a unit of the
// last place: there the two ways of computing differ, and the plain one must decide.
TEST(NormalFloats, WhereTheRoundingIsOpen) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const uint64_t x = mix64(i);
    std::vector<uint32_t> u;
    for (int k = 0; k < 4; ++k)
      u.insert(u.end(), {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)});
    double z[2];
    normal_pair(u[0], u[1], &z[0], &z[1]);
    const double middle = 1.5 + (2.0 * static_cast<double>(i % 1000) + 1.0) * 0x1p-24;
    const double other = z[i % 2];
    if (std::abs(other) > 1e-3) expect_plain(u, middle / other);
  }
}

TEST(NormalFill, IsTheSequenceOfItsKey) {
  const RandomKey key = random_key(42, 7, 3);
  // Across the border of 2^32 blocks, where the second word of the counter begins to count.
  for (const int64_t block : {int64_t{0}, int64_t{5}, (int64_t{1} << 32) - 40})
    for (const int64_t n : {1, 3, 4, 15, 16, 17, 255, 256, 257, 1030}) {
      std::vector<float> got(static_cast<size_t>(n) + 1, -7.0f);
      normal_fill(key, block, n, 0.02, got.data());
      EXPECT_EQ(got.back(), -7.0f);
      for (int64_t j = 0; j < n; ++j) {
        const Philox4 u = random_block(key, static_cast<uint64_t>(block + j / 4), 0, 0);
        double z[4];
        normal_pair(u[0], u[1], &z[0], &z[1]);
        normal_pair(u[2], u[3], &z[2], &z[3]);
        ASSERT_EQ(bits_of(got[static_cast<size_t>(j)]),
                  bits_of(static_cast<float>(z[j % 4] * 0.02)))
            << block << " " << n << " " << j;
      }
    }
}

}  // namespace
}  // namespace snug
