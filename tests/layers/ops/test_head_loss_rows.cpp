#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "layers/ops/head_loss_rows.h"

namespace snug::test {
namespace {

std::vector<float> row_of(int64_t n) {
  std::vector<float> x(static_cast<size_t>(n));
  for (size_t j = 0; j < x.size(); ++j) x[j] = -2.0f + static_cast<float>(j * 37 % 101) * 0.01f;
  return x;
}

TEST(HeadLossRows, TheMaximumIsFoundInEveryPlace) {
  for (const int64_t n : {1, 15, 16, 17, 40})
    for (int64_t at = 0; at < n; ++at) {
      std::vector<float> x = row_of(n);
      x[static_cast<size_t>(at)] = 1.5f;
      EXPECT_EQ(row_max(x.data(), n), 1.5f) << n << " " << at;
    }
}

// Lengths around the 16 lanes and around the 1024 columns after which the sum goes to fp64. A lane
// adds 64 positive terms: at most 64 roundings, and 2.5e-7 of the exponential.
TEST(HeadLossRows, TheSumTakesEveryColumn) {
  for (const int64_t n : {1, 15, 16, 17, 1023, 1024, 1025, 5000}) {
    std::vector<float> x = row_of(n);
    const std::vector<float> before = x;
    const double sum = row_exp(x.data(), n, 0.25f);
    double want = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      const double e = std::exp(static_cast<double>(before[j]) - 0.25);
      EXPECT_NEAR(x[j], e, 5e-7 * e);
      want += e;
    }
    EXPECT_NEAR(sum, want, (64 * 0x1p-24 + 5e-7) * want) << n;
  }
}

}  // namespace
}  // namespace snug::test
