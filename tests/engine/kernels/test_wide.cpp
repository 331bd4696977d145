// The exponential that softmax and activations share, in the version every machine runs; that the
// wider one has its bits, the loops over it show.
#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>
#include <limits>

#include "engine/kernels/loops.h"

namespace snug {
namespace {

#include "engine/kernels/wide_avx2.h"
// The types of the one before are used by the other.
#include "engine/kernels/wide.h"

float exp_of(float x) {
  float y[16];
  store(y, exp_of(set1(x)));
  return y[7];
}

TEST(Wide, ExpErrsByLessThanTwoUlp) {
  double worst = 0;
  for (double x = -87.33; x <= 88; x += 1.03e-4) {
    const auto at = static_cast<float>(std::min(std::max(x, -87.3299), 88.0));
    const double truth = std::exp(static_cast<double>(at));
    worst = std::max(worst, std::fabs(exp_of(at) - truth) / truth);
  }
  EXPECT_LT(worst, 2.5e-7);
  EXPECT_GT(worst, 1e-8);  // it is a float
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-0.0f), 1.0f);
}

TEST(Wide, ExpEnds) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of(-87.34f), 0.0f);
  EXPECT_EQ(exp_of(-1e30f), 0.0f);
  EXPECT_EQ(exp_of(-inf), 0.0f);
  EXPECT_GT(exp_of(-87.33f), 0.0f);
  EXPECT_TRUE(std::isfinite(exp_of(88.0f)));
  EXPECT_TRUE(std::isnan(exp_of(std::nanf(""))));
}

}  // namespace
}  // namespace snug
