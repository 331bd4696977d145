#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/core/isa.h"
#include "layers/ops/row_loops.h"

namespace snug::test {
namespace {

std::vector<float> row_of(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t j = 0; j < x.size(); ++j) x[j] = -2.0f + static_cast<float>(j * 37 % 101) * 0.01f;
  return x;
}

std::vector<SoftmaxLoops> available() {
  std::vector<SoftmaxLoops> all = {softmax_loops_avx2()};
  if (use_avx512()) all.push_back(softmax_loops_avx512());
  return all;
}

TEST(HeadLossRows, TheMaximumIsFoundInEveryPlace) {
  for (const SoftmaxLoops& loops : available())
    for (const int64_t n : {1, 15, 16, 17, 40, 64, 85, 150})
      for (int64_t at = 0; at < n; ++at) {
        std::vector<float> x = row_of(n);
        x[static_cast<size_t>(at)] = 1.5f;
        EXPECT_EQ(loops.max(x.data(), n), 1.5f) << n << " " << at;
      }
}

// Lengths around the 16 lanes and around the 1024 columns after which the sum goes to fp64. A lane
// adds 64 positive terms: at most 64 roundings, and 2.5e-7 of the exponential.
TEST(HeadLossRows, TheSumTakesEveryColumn) {
  for (const int64_t n : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    const std::vector<float> x = row_of(n);
    double want = 0;
    for (const float z : x) want += std::exp(static_cast<double>(z) - 0.25);
    const double first = available()[0].exp_sum(x.data(), n, 0.25f, nullptr);
    EXPECT_NEAR(first, want, (64 * 0x1p-24 + 5e-7) * want) << n;
    for (const SoftmaxLoops& loops : available())
      EXPECT_EQ(loops.exp_sum(x.data(), n, 0.25f, x.data()), first) << n;
  }
}

// The exponential of every logit: 2.5e-7 of it, the rounding of z - shift (at most 87 wide: half a
// unit of 2^-17) and one of the product.
TEST(HeadLossRows, TheExponentialHoldsOverItsWholeRange) {
  std::vector<SoftmaxGradient<float>> all = {softmax_gradient_avx2<float>()};
  if (use_avx512()) all.push_back(softmax_gradient_avx512<float>());
  const int64_t n = 88 * 256 + 5;
  std::vector<float> z(static_cast<size_t>(n));
  for (size_t j = 0; j < z.size(); ++j) z[j] = -static_cast<float>(j) / 256.0f;
  const float infinity = std::numeric_limits<float>::infinity();
  z[7] = -infinity;
  z[8] = std::numeric_limits<float>::quiet_NaN();
  for (const auto gradient : all) {
    std::vector<float> dz(z.size(), 1.0f);
    gradient(dz.data(), z.data(), n, n, 0.0f, 3.0f, n - 1, 0.5f);
    for (size_t j = 0; j + 1 < z.size(); ++j) {
      if (j == 7) {
        EXPECT_EQ(dz[j], 0.0f);
      } else if (j == 8) {
        EXPECT_TRUE(std::isnan(dz[j]));
      } else if (z[j] < -87.33f) {
        EXPECT_EQ(dz[j], 0.0f) << z[j];
      } else {
        const double want = 3 * std::exp(static_cast<double>(z[j]));
        EXPECT_NEAR(dz[j], want, 3.1e-7 * want) << z[j];
      }
    }
    EXPECT_EQ(dz.back(), -0.5f);
  }
}

}  // namespace
}  // namespace snug::test
