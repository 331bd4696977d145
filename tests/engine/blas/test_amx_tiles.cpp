// The software tiles against the manual's rule written out element by element in double, which
// holds every product of two bf16 exactly; and against the instructions where the CPU has them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "engine/blas/amx_tiles.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"

namespace snug::blas {
namespace {

struct Tiles {
  uint16_t a[16][32];  // row m, k
  uint16_t b[16][32];  // row of pairs u: column n at 2 n (k = 2u) and 2 n + 1 (k = 2u + 1)
  float c[16][16];
};

template <class Maker>
void multiply(Tiles& t) {
  Maker::configure();
  Maker::template load<0>(t.c, 64);
  Maker::template load_once<5>(t.a, 64);  // another hint, the same tile
  Maker::template load<7>(t.b, 64);
  Maker::template multiply<0, 5, 7>();
  Maker::template store<0>(t.c, 64);
  Maker::release();
}

double plain(uint16_t bits) {  // subnormals are zero
  const float v = to_f32(bf16{bits});
  return std::fabs(v) < 0x1p-126f ? std::copysign(0.0, static_cast<double>(v))
                                  : static_cast<double>(v);
}
float rounded(double v) {  // to fp32, nearest even, subnormals to zero
  const auto f = static_cast<float>(v);
  return std::fabs(f) < 0x1p-126f ? std::copysign(0.0f, f) : f;
}
// x y is exact in double; adding s to it is rounded once more than a fused step, which shows only
// where the double sum lies on the middle of two floats: fma in double, rounded to odd, avoids it.
float fused(double x, double y, float s) {
  const double p = x * y, a = static_cast<double>(s);
  double sum = p + a;
  const double back = sum - p, lost = (p - (sum - back)) + (a - back);  // Knuth's two-sum, exact
  if (lost != 0 && std::isfinite(sum)) {
    uint64_t bits;
    std::memcpy(&bits, &sum, 8);
    if (bits % 2 == 0) bits += (lost > 0) == (sum > 0) ? 1 : static_cast<uint64_t>(-1);
    std::memcpy(&sum, &bits, 8);
  }
  return rounded(sum);
}

void expected(Tiles& t) {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0;
      for (int u = 0; u < 16; ++u) {
        even = fused(plain(t.a[m][2 * u]), plain(t.b[u][2 * n]), even);
        odd = fused(plain(t.a[m][2 * u + 1]), plain(t.b[u][2 * n + 1]), odd);
      }
      const float pair = rounded(static_cast<double>(even) + static_cast<double>(odd));
      t.c[m][n] = rounded(static_cast<double>(rounded(static_cast<double>(t.c[m][n]))) +
                          static_cast<double>(pair));
    }
}

struct Range {
  int lowest, highest;      // exponents of the operands
  int c_lowest, c_highest;  // and of C
};
// Near one; then products and C about the smallest normal, with subnormal operands among them, and
// C small enough that every bit of the products counts.
const Range kRanges[] = {
    {120, 130, 120, 130}, {126, 127, 126, 127}, {60, 68, 0, 8}, {61, 64, 0, 3}, {0, 127, 0, 10}};

Tiles filled(uint32_t seed, const Range& range) {
  const auto next = [&seed] { return (seed = seed * 1664525u + 1013904223u) >> 8; };
  const auto number = [&](int lowest, int highest) {
    const auto exponent = lowest + static_cast<int>(next() % (highest - lowest + 1));
    return static_cast<uint16_t>((next() % 2) << 15 | static_cast<unsigned>(exponent) << 7 |
                                 next() % 128);
  };
  Tiles t;
  for (auto& row : t.a)
    for (uint16_t& v : row) v = number(range.lowest, range.highest);
  for (auto& row : t.b)
    for (uint16_t& v : row) v = number(range.lowest, range.highest);
  for (auto& row : t.c)
    for (float& v : row) v = to_f32(bf16{number(range.c_lowest, range.c_highest)});
  return t;
}

bool same(const Tiles& x, const Tiles& y) {
  return std::memcmp(x.c, y.c, sizeof x.c) == 0;
}

TEST(AmxTiles, SoftwareDoesWhatTheManualSays) {
  for (const auto& range : kRanges)
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      Tiles got = filled(seed, range), want = got;
      multiply<SoftwareTiles>(got);
      expected(want);
      EXPECT_TRUE(same(got, want)) << range.lowest << " " << seed;
    }
}

// One element by hand: the even sum and the odd sum are added before C is.
TEST(AmxTiles, EvenAndOddAreSummedApart) {
  Tiles t{};
  const auto half = [](float v) { return from_f32<bf16>(v).bits; };
  t.a[3][0] = half(0x1p24f), t.a[3][1] = half(1.0f), t.a[3][2] = half(-0x1p24f);
  t.a[3][3] = half(0.5f);
  for (int u = 0; u < 2; ++u) t.b[u][10] = t.b[u][11] = half(1.0f);
  t.c[3][5] = 0x1p24f;
  multiply<SoftwareTiles>(t);
  // In order of k, 2^24 + 2^24 + 1 would lose the 1 and C the half.
  EXPECT_EQ(t.c[3][5], 0x1p24f + 2.0f) << "2^24 + 1.5 rounds to even 2^24 + 2";
  EXPECT_EQ(t.c[3][4], 0.0f);
  EXPECT_EQ(t.c[2][5], 0.0f);
}

TEST(AmxTiles, SubnormalsCountAsZero) {
  Tiles t{};
  t.a[0][0] = 0x007f;  // subnormal
  t.b[0][0] = from_f32<bf16>(0x1p100f).bits;
  t.a[1][0] = from_f32<bf16>(0x1p-70f).bits;  // product 2^-140
  t.b[0][2] = from_f32<bf16>(0x1p-70f).bits;
  t.c[2][3] = 0x1p-130f;
  t.a[3][0] = from_f32<bf16>(0x1p-56f).bits;  // by the 2^-70 of column 1: the smallest normal
  t.c[3][1] = 0x1p-127f;
  multiply<SoftwareTiles>(t);
  EXPECT_EQ(t.c[3][1], 0x1p-126f) << "an old sum beside a normal";
  EXPECT_EQ(t.c[0][0], 0.0f) << "an operand";
  EXPECT_EQ(t.c[1][1], 0.0f) << "a product";
  EXPECT_EQ(t.c[2][3], 0.0f) << "an old sum";
  EXPECT_EQ(t.c[1][0], 0x1p30f);
}

TEST(AmxTiles, InstructionsDoWhatTheSoftwareDoes) {
  if (!amx_bf16_available()) GTEST_SKIP() << "no AMX on this CPU";
  for (const auto& range : kRanges)
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      Tiles hard = filled(seed, range), soft = hard;
      multiply<HardwareTiles>(hard);
      multiply<SoftwareTiles>(soft);
      EXPECT_TRUE(same(hard, soft)) << range.lowest << " " << seed;
    }
}

TEST(AmxTiles, UseWithoutConfigurationIsAnError) {
  float sums[16][16];
  SoftwareTiles::configure();
  SoftwareTiles::zero<1>();
  SoftwareTiles::release();
  try {
    SoftwareTiles::store<1>(sums, 64);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(e.expected().find("tiles configured by this thread"), std::string::npos);
  }
}

}  // namespace
}  // namespace snug::blas
