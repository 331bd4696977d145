#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/errors.h"
#include "tools/calibrate/median.h"

namespace snug {
namespace {

double of(std::vector<double> values, Middle even = Middle::mean) {
  return median_of(values, even);
}

TEST(Median, OddAndEvenCounts) {
  for (const Middle even : {Middle::mean, Middle::lower, Middle::upper}) {
    EXPECT_EQ(of({7}, even), 7);
    EXPECT_EQ(of({9, -1, 4}, even), 4);
    EXPECT_EQ(of({2, 2, 1, 2}, even), 2);
  }
  EXPECT_EQ(of({8, 1, 4, 2}), 3);
  EXPECT_EQ(of({8, 1, 4, 2}, Middle::lower), 2);
  EXPECT_EQ(of({8, 1, 4, 2}, Middle::upper), 4);
  EXPECT_EQ(of({3, 1}), 2);
  EXPECT_EQ(of({3, 1}, Middle::lower), 1);
  EXPECT_EQ(of({3, 1}, Middle::upper), 3);
}

// Against a sorted copy, with repeated values; none is lost from the list.
TEST(Median, OfAnyListWhatSortingSays) {
  std::mt19937 random(5);
  for (size_t n = 1; n <= 40; ++n)
    for (int round = 0; round < 20; ++round) {
      std::vector<double> values(n);
      for (double& v : values) v = static_cast<double>(random() % 16) / 3;
      std::vector<double> sorted = values;
      std::sort(sorted.begin(), sorted.end());
      const double lower = sorted[(n - 1) / 2], upper = sorted[n / 2];
      EXPECT_EQ(of(values), n % 2 == 1 ? lower : (lower + upper) / 2);
      EXPECT_EQ(of(values, Middle::lower), lower);
      EXPECT_EQ(of(values, Middle::upper), upper);
      static_cast<void>(median_of(values));
      std::sort(values.begin(), values.end());
      EXPECT_EQ(values, sorted);
    }
}

TEST(Median, OfNothingIsRefused) {
  test::expect_error(ErrorCode::internal, {"values to take the median of"},
                     [] { static_cast<void>(of({})); });
}

}  // namespace
}  // namespace snug
