#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "engine/core/isa.h"
#include "engine/kernels/loops.h"
#include "tests/support/values.h"

namespace snug::test {
namespace {

// The versions that this machine can run: f(avx2), f(avx512).
template <class Loops, class F>
void each_version(Loops avx2, Loops avx512, F&& f) {
  f(avx2, "AVX2");
  if (use_avx512()) f(avx512, "AVX-512");
}

uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}

// Every upper half of a float with lower halves around the points where rounding to bf16 turns, and
// with those where rounding to f16 does; infinities, NaNs and subnormals are among them.
std::vector<float> telling_floats() {
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 65536; ++upper)
    for (const uint32_t lower :
         {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x2fffu, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
  return x;
}

template <class T>
void check_narrow() {
  const std::vector<float> x = telling_floats();
  const auto n = static_cast<int64_t>(x.size());
  each_version(pair_loops_avx2<T, float>(), pair_loops_avx512<T, float>(),
               [&](PairLoops<T, float> loops, const char* name) {
                 // A start that is not a multiple of 16 puts other values into the tail.
                 for (const int64_t begin : {int64_t{0}, n - 21}) {
                   std::vector<T> y(x.size());
                   loops.cast(y.data() + begin, x.data() + begin, n - begin);
                   for (auto i = static_cast<size_t>(begin); i < x.size(); ++i)
                     ASSERT_EQ(y[i].bits, from_f32<T>(x[i]).bits)
                         << name << " " << std::hex << bits_of(x[i]);
                 }
               });
}

TEST(Loops, EveryRoundingIsThatOfTheScalar) {
  check_narrow<bf16>();
  check_narrow<f16>();
}

template <class T>
void check_widen() {
  std::vector<T> x(65536 + 7);
  for (size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<uint16_t>(i);
  each_version(pair_loops_avx2<float, T>(), pair_loops_avx512<float, T>(),
               [&](PairLoops<float, T> loops, const char* name) {
                 std::vector<float> y(x.size());
                 loops.cast(y.data(), x.data(), static_cast<int64_t>(x.size()));
                 for (size_t i = 0; i < x.size(); ++i) {
                   const float want = to_f32(x[i]);
                   if (std::isnan(want))
                     ASSERT_TRUE(std::isnan(y[i])) << name << " " << i;
                   else
                     ASSERT_EQ(bits_of(y[i]), bits_of(want)) << name << " " << i;
                 }
               });
}

TEST(Loops, EveryWideningIsThatOfTheScalar) {
  check_widen<bf16>();
  check_widen<f16>();
}

std::vector<float> some_floats(int64_t n, uint32_t seed) {
  const Values v = normal_values(n, seed);
  return {v.begin(), v.end()};
}

// Rows in order, for every number of rows around the four that are taken together.
TEST(Loops, RowsAreAddedInOrder) {
  for (const int64_t rows : {0, 1, 3, 4, 5, 11})
    for (const int64_t n : {1, 15, 16, 37})
      each_version(float_loops_avx2<float>(), float_loops_avx512<float>(),
                   [&](FloatLoops<float> loops, const char* name) {
                     const int64_t stride = n + 3;
                     const std::vector<float> x = some_floats(rows * stride + n, 1);
                     std::vector<float> sum = some_floats(n, 2), want = sum;
                     for (int64_t r = 0; r < rows; ++r)
                       for (int64_t c = 0; c < n; ++c)
                         want[static_cast<size_t>(c)] += x[static_cast<size_t>(r * stride + c)];
                     loops.add_rows(sum.data(), x.data(), rows, stride, n);
                     EXPECT_EQ(sum, want) << name << " " << rows << " " << n;
                   });
}

// The order that the header states.
TEST(Loops, SquaresAreSummedInTheStatedOrder) {
  for (const int64_t n : {0, 1, 15, 16, 17, 33, 1000}) {
    const std::vector<float> x = some_floats(n, 3);
    double lane[4][4] = {}, rest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = x[static_cast<size_t>(i)];
      (i < n / 16 * 16 ? lane[i / 4 % 4][i % 4] : rest) += v * v;
    }
    double q[4];
    for (int l = 0; l < 4; ++l) q[l] = (lane[0][l] + lane[1][l]) + (lane[2][l] + lane[3][l]);
    const double want = (q[0] + q[2]) + (q[1] + q[3]) + rest;
    EXPECT_EQ(sum_of_squares_avx2(x.data(), n), want) << n;
    if (use_avx512()) {
      EXPECT_EQ(sum_of_squares_avx512(x.data(), n), want) << n;
    }
  }
}

TEST(Loops, TheWideSetCanBePutAside) {
  const bool before = use_avx512();
  {
    const WithoutAvx512 outer;
    EXPECT_FALSE(use_avx512());
    { const WithoutAvx512 inner; }
    EXPECT_FALSE(use_avx512());
  }
  EXPECT_EQ(use_avx512(), before);
}

}  // namespace
}  // namespace snug::test
