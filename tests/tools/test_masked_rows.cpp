#include <gtest/gtest.h>

#include <cmath>

#include "tools/setup/row_data.h"

namespace snug {
namespace {

// The chance that more than `most` of n tokens are drawn, each with probability p.
double chance_above(int64_t most, int64_t n, double p) {
  double sum = 0;
  for (int64_t k = most + 1; k <= n; ++k) {
    const auto a = static_cast<double>(n), b = static_cast<double>(k);
    sum += std::exp(std::lgamma(a + 1) - std::lgamma(b + 1) - std::lgamma(a - b + 1) +
                    b * std::log(p) + (a - b) * std::log1p(-p));
  }
  return sum;
}

// A run of a million windows meets none that it would have to cut, and plans little more than that
// takes: five deviations are met once in some millions.
TEST(MaskedRows, HoldWhatIsDrawnAndLittleMore) {
  for (const double p : {0.05, 0.15, 0.4, 0.8}) {
    for (const int64_t T : {1, 2, 17, 128, 512, 4096}) {
      SCOPED_TRACE(testing::Message() << p << " of " << T);
      const int64_t most = masked_rows(T, p);
      ASSERT_LE(most, T);
      EXPECT_LT(chance_above(most, T, p), 1e-6);
      if (T < 128) continue;
      const auto n = static_cast<double>(T);
      const double deviation = std::sqrt(n * p * (1 - p));
      EXPECT_LE(static_cast<double>(most), n * p + 6.5 * deviation + 1);
      EXPECT_GE(static_cast<double>(most), std::min(n, n * p + 5.5 * deviation));
    }
    EXPECT_EQ(masked_rows(64, 1.0), 64);
  }
}

}  // namespace
}  // namespace snug
