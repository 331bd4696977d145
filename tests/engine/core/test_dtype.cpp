// bf16 and f16 against the definition of the formats, computed in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/rng.h"

namespace snug {
namespace {

// A binary format: bits of the significand with the hidden one, the exponents of its normal values.
struct Format {
  int significand, lowest, highest;
};
constexpr Format kBf16 = {8, -126, 127};
constexpr Format kF16 = {11, -14, 15};

// The value of a bit pattern, from the definition.
double decode(uint16_t bits, const Format& f) {
  const int stored = f.significand - 1;
  const int field = (bits & 0x7fff) >> stored;
  const int fraction = bits & ((1 << stored) - 1);
  const int all_ones = (0x7fff >> stored);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (field == all_ones)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  if (field == 0) return sign * std::ldexp(fraction, f.lowest - stored);
  return sign * std::ldexp(fraction + (1 << stored), field - 1 + f.lowest - stored);
}

// The nearest value of the format, ties to the even significand, in double where all is exact.
double nearest(double x, const Format& f) {
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - 1, f.lowest) - (f.significand - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
  const double largest = std::ldexp(2 - std::ldexp(1.0, 1 - f.significand), f.highest);
  return std::fabs(rounded) > largest
             ? std::copysign(std::numeric_limits<double>::infinity(), rounded)
             : rounded;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

template <class T>
void check_all_patterns(const Format& f) {
  for (uint32_t u = 0; u < 65536; ++u) {
    const auto bits = static_cast<uint16_t>(u);
    const float x = to_f32(T{bits});
    ASSERT_TRUE(same(x, decode(bits, f))) << std::hex << u << " is read as " << x;
    const uint16_t back = from_f32<T>(x).bits;
    if (std::isnan(x))
      ASSERT_TRUE(std::isnan(to_f32(T{back}))) << std::hex << u;
    else
      ASSERT_EQ(back, bits) << std::hex << u;
  }
}

template <class T>
void check_rounding(float x, const Format& f) {
  ASSERT_TRUE(same(to_f32(from_f32<T>(x)), nearest(x, f)))
      << x << " (" << std::hex << std::bit_cast<uint32_t>(x) << ") became "
      << to_f32(from_f32<T>(x)) << ", nearest is " << nearest(x, f);
}

// Every value of the format, the middle to its neighbour above and the floats on both sides of the
// middle: all ties, the border to infinity and all subnormals are among them.
template <class T>
void check_ties(const Format& f) {
  const int stored = f.significand - 1;
  for (uint32_t u = 0; u < 65536; ++u) {
    const auto bits = static_cast<uint16_t>(u);
    const double low = decode(bits, f);
    if (!std::isfinite(low)) continue;
    const int field = (bits & 0x7fff) >> stored;
    const double unit = std::ldexp(1.0, std::max(field, 1) - 1 + f.lowest - stored);
    const auto middle = static_cast<float>(low + std::copysign(unit / 2, low));
    check_rounding<T>(middle, f);
    check_rounding<T>(std::nextafter(middle, std::numeric_limits<float>::infinity()), f);
    check_rounding<T>(std::nextafter(middle, -std::numeric_limits<float>::infinity()), f);
  }
}

template <class T>
void check_random(const Format& f) {
  for (uint64_t i = 0; i < 500000; ++i) {
    const auto bits = static_cast<uint32_t>(mix64(i));
    check_rounding<T>(std::bit_cast<float>(bits), f);
    // The same significand near f16's range, which random patterns rarely meet.
    const uint32_t exponent = 127 - 28 + static_cast<uint32_t>(mix64(i) >> 40) % 48;
    check_rounding<T>(std::bit_cast<float>((bits & 0x807fffffu) | exponent << 23), f);
  }
}

TEST(Bf16, AllPatternsReadAndReturn) {
  check_all_patterns<bf16>(kBf16);
}
TEST(Bf16, TiesGoToEven) {
  check_ties<bf16>(kBf16);
}
TEST(Bf16, RandomFloatsRoundToNearest) {
  check_random<bf16>(kBf16);
}
TEST(F16, AllPatternsReadAndReturn) {
  check_all_patterns<f16>(kF16);
}
TEST(F16, TiesGoToEven) {
  check_ties<f16>(kF16);
}
TEST(F16, RandomFloatsRoundToNearest) {
  check_random<f16>(kF16);
}

// Published constants of the formats.
TEST(Bf16, KnownValues) {
  EXPECT_EQ(from_f32<bf16>(1.0f).bits, 0x3f80);
  EXPECT_EQ(from_f32<bf16>(-2.0f).bits, 0xc000);
  EXPECT_EQ(from_f32<bf16>(3.1415927f).bits, 0x4049);
  EXPECT_EQ(from_f32<bf16>(3.4028235e38f).bits, 0x7f80);  // the largest float is past the middle
  EXPECT_EQ(to_f32(bf16{0x7f7f}), 3.3895314e38f);
  EXPECT_EQ(to_f32(bf16{0x0001}), 0x1p-133f);
  EXPECT_EQ(from_f32<bf16>(std::bit_cast<float>(0x7f800001u)).bits & 0x7fc0, 0x7fc0);  // quieted
}
TEST(F16, KnownValues) {
  EXPECT_EQ(from_f32<f16>(1.0f).bits, 0x3c00);
  EXPECT_EQ(from_f32<f16>(-2.0f).bits, 0xc000);
  EXPECT_EQ(from_f32<f16>(65504.0f).bits, 0x7bff);
  EXPECT_EQ(from_f32<f16>(65519.996f).bits, 0x7bff);
  EXPECT_EQ(from_f32<f16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_f32<f16>(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(from_f32<f16>(0x1p-25f).bits, 0x0000);  // a tie, to even
  EXPECT_EQ(from_f32<f16>(-0x1.000002p-25f).bits, 0x8001);
  EXPECT_EQ(from_f32<f16>(0x1.ffcp-15f).bits, 0x0400 - 1 + 1);  // a tie up to the least normal
  EXPECT_EQ(to_f32(f16{0x3555}), 0.33325195f);
}

TEST(DType, SizesAndNames) {
  const struct {
    DType type;
    int64_t size;
    const char* name;
  } rows[] = {{DType::f32, 4, "f32"}, {DType::bf16, 2, "bf16"}, {DType::f16, 2, "f16"},
              {DType::i32, 4, "i32"}, {DType::i64, 8, "i64"},   {DType::u8, 1, "u8"},
              {DType::u16, 2, "u16"}, {DType::f64, 8, "f64"}};
  for (const auto& row : rows) {
    EXPECT_EQ(size_of(row.type), row.size) << row.name;
    EXPECT_STREQ(to_string(row.type), row.name);
  }
  EXPECT_EQ(dtype_of<float>::value, DType::f32);
  EXPECT_EQ(dtype_of<bf16>::value, DType::bf16);
  EXPECT_EQ(dtype_of<f16>::value, DType::f16);
  EXPECT_EQ(dtype_of<int32_t>::value, DType::i32);
  EXPECT_EQ(dtype_of<int64_t>::value, DType::i64);
  EXPECT_EQ(dtype_of<uint8_t>::value, DType::u8);
  EXPECT_EQ(dtype_of<uint16_t>::value, DType::u16);
  EXPECT_EQ(dtype_of<double>::value, DType::f64);
}

}  // namespace
}  // namespace snug
