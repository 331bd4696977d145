#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "engine/core/error.h"
#include "engine/data/dataset.h"
#include "tests/engine/data/heap_count.h"
#include "tests/engine/io/temp_folder.h"

namespace snug {
namespace {

TEST(PermutedOrder, IsABijectionForEverySmallSize) {
  for (int64_t n = 1; n <= 2000; ++n) {
    const PermutedOrder order(n, 42);
    std::vector<bool> seen(static_cast<size_t>(n), false);
    const int64_t epoch = n % 3;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t v = order.at(epoch, i);
      ASSERT_TRUE(v >= 0 && v < n) << "n " << n << " i " << i;
      ASSERT_FALSE(seen[static_cast<size_t>(v)]) << "n " << n << " twice " << v;
      seen[static_cast<size_t>(v)] = true;
      ASSERT_EQ(order[epoch * n + i], v);
    }
  }
}

TEST(PermutedOrder, LargeSizesNeverRepeat) {
  for (const int64_t n :
       {(int64_t{1} << 20) - 1, (int64_t{1} << 31) + 7, (int64_t{1} << 40) + 1, int64_t{1} << 62}) {
    const PermutedOrder order(n, 7);
    std::set<int64_t> seen;
    const int64_t step = std::max<int64_t>(1, n / 20000);
    int64_t count = 0, below = 0;
    for (int64_t i = 0; i < n && count < 20000; i += step, ++count) {
      const int64_t v = order.at(1, i);
      ASSERT_TRUE(v >= 0 && v < n);
      ASSERT_TRUE(seen.insert(v).second) << n;
      below += v < n / 2;
    }
    // A fair split of 20000 has a standard deviation of 71; five of them.
    EXPECT_NEAR(static_cast<double>(below), static_cast<double>(count) / 2, 355) << n;
  }
}

// All 120 orders of five samples come up alike: chi-square with 119 degrees of freedom has mean 119
// and standard deviation sqrt(238) = 15.4; five of them.
TEST(PermutedOrder, EveryOrderOfFiveIsEquallyLikely) {
  const PermutedOrder order(5, 1);
  std::map<int64_t, int64_t> counts;
  const int64_t epochs = 12000;
  for (int64_t e = 0; e < epochs; ++e) {
    int64_t code = 0;
    for (int64_t i = 0; i < 5; ++i) code = code * 5 + order.at(e, i);
    ++counts[code];
  }
  EXPECT_EQ(counts.size(), 120u);
  const double expected = static_cast<double>(epochs) / 120;
  double chi = 0;
  for (const auto& [code, count] : counts) {
    const double d = static_cast<double>(count) - expected;
    chi += d * d / expected;
  }
  EXPECT_LT(std::abs(chi - 119), 5 * 15.4) << chi;
}

// Neighbours in the order are not neighbours in the data, and epochs and seeds have their own
// orders.
TEST(PermutedOrder, EpochsAndSeedsDiffer) {
  const int64_t n = 10007;
  const PermutedOrder a(n, 1), b(n, 2);
  int64_t same_epoch = 0, same_seed = 0, adjacent = 0, fixed = 0;
  for (int64_t i = 0; i < n; ++i) {
    same_epoch += a.at(0, i) == a.at(1, i);
    same_seed += a.at(0, i) == b.at(0, i);
    fixed += a.at(0, i) == i;
    if (i > 0) adjacent += std::abs(a.at(0, i) - a.at(0, i - 1)) == 1;
    EXPECT_EQ(a[i + 3 * n], a.at(3, i));
  }
  // Each count is close to Poisson with mean 1 (adjacent: 2); above 12 has a chance below 1e-6.
  EXPECT_LE(same_epoch, 12);
  EXPECT_LE(same_seed, 12);
  EXPECT_LE(fixed, 12);
  EXPECT_LE(adjacent, 12);
  EXPECT_EQ(PermutedOrder(n, 1)[12345], a[12345]);  // a function of (seed, k) alone
}

// The order is part of what a checkpoint means, so its values must not change by accident. (They
// were checked against a second implementation of the network.)
TEST(PermutedOrder, IsPinned) {
  const PermutedOrder order(1000, 42);
  std::vector<int64_t> first;
  for (int64_t k = 0; k < 6; ++k) first.push_back(order[k]);
  EXPECT_EQ(first, (std::vector<int64_t>{855, 551, 63, 287, 825, 17}));
}

TokenFile counting_file(const std::string& path, int64_t count, int32_t first) {
  TokenFileWriter writer(path, 60000, 1);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = first + static_cast<int32_t>(i);
    writer.append(&id, 1);
  }
  writer.commit();
  return TokenFile(path);
}

std::vector<TokenFile> one(TokenFile file) {
  std::vector<TokenFile> files;
  files.push_back(std::move(file));
  return files;
}

TEST(WindowDataset, WindowsFollowEachOtherWithTargetsOnePlaceLater) {
  TempFolder tmp;
  // 25 tokens, T = 4: (25 - 1) / 4 = 6 samples; 24 tokens give 5, since the last needs its target.
  EXPECT_EQ(WindowDataset(one(counting_file(tmp / "s", 24, 0)), 4).train_samples(), 5);
  const WindowDataset data(one(counting_file(tmp / "t", 25, 100)), 4,
                           {.eval_fraction = 0, .seed = 1, .shuffle = false});
  EXPECT_EQ(data.train_samples(), 6);
  EXPECT_EQ(data.eval_samples(), 0);
  int32_t tokens[8 * 4], targets[8 * 4];
  data.fill(0, 8, tokens, targets);  // wraps into the next epoch
  for (int32_t j = 0; j < 8; ++j)
    for (int32_t t = 0; t < 4; ++t) {
      EXPECT_EQ(tokens[j * 4 + t], 100 + (j % 6) * 4 + t);
      EXPECT_EQ(targets[j * 4 + t], tokens[j * 4 + t] + 1);
    }
}

TEST(WindowDataset, HeldOutTargetsAreNeverTrained) {
  TempFolder tmp;
  const int64_t T = 8, n = 1000;
  const WindowDataset data(one(counting_file(tmp / "t", n, 0)), T,
                           {.eval_fraction = 0.1, .seed = 3});
  EXPECT_EQ(data.train_samples() + data.eval_samples(), (n - 1) / T);
  EXPECT_EQ(data.eval_samples(), 12);  // round(124 * 0.1)
  std::vector<int32_t> tokens(8), targets(8);
  std::set<int32_t> trained, held;
  for (int64_t k = 0; k < data.train_samples(); ++k) {
    data.fill(k, 1, tokens.data(), targets.data());
    for (const int32_t t : targets) EXPECT_TRUE(trained.insert(t).second);
  }
  for (int64_t e = 0; e < data.eval_samples(); ++e) {
    data.fill_eval(e, 1, tokens.data(), targets.data());
    EXPECT_EQ(tokens[0], static_cast<int32_t>((data.train_samples() + e) * T));
    for (const int32_t t : targets) {
      EXPECT_TRUE(held.insert(t).second);
      EXPECT_EQ(trained.count(t), 0u);
    }
  }
  EXPECT_EQ(trained.size() + held.size(), 992u);  // every token but the first and the rest
  EXPECT_THROW(data.fill_eval(12, 1, tokens.data(), targets.data()), Error);
  EXPECT_THROW(data.fill(-1, 1, tokens.data(), targets.data()), Error);
}

TEST(WindowDataset, FillTakesNoMemory) {
  TempFolder tmp;
  const WindowDataset data(one(counting_file(tmp / "t", 500, 0)), 3, {.eval_fraction = 0.1});
  std::vector<int32_t> tokens(40 * 3), targets(40 * 3);
  const int64_t before = heap_requests();
  data.fill(150, 40, tokens.data(), targets.data());
  data.fill_eval(0, data.eval_samples(), tokens.data(), targets.data());
  EXPECT_EQ(heap_requests(), before);
  EXPECT_GT(before, 0);  // the counter is in use
}

TEST(WindowDataset, AnyBatchSplitGivesTheSameSamples) {
  TempFolder tmp;
  const WindowDataset data(one(counting_file(tmp / "t", 500, 0)), 3, {.seed = 9});
  std::vector<int32_t> whole(40 * 3), targets(40 * 3), part(40 * 3);
  data.fill(150, 40, whole.data(), targets.data());
  for (int64_t k = 0; k < 40; k += 8)
    data.fill(150 + k, 8, part.data() + k * 3, targets.data() + k * 3);
  EXPECT_EQ(whole, part);
}

TEST(WindowDataset, NoWindowCrossesFiles) {
  TempFolder tmp;
  std::vector<TokenFile> files;
  const int64_t sizes[] = {3, 11, 5, 20, 2};  // T = 5: 0, 2, 0, 3, 0 samples
  for (int32_t f = 0; f < 5; ++f)
    files.push_back(counting_file(tmp / std::to_string(f), sizes[f], 1000 * f));
  const WindowDataset data(std::move(files), 5,
                           {.eval_fraction = 0.2, .seed = 1, .shuffle = false});
  ASSERT_EQ(data.train_samples(), 4);
  ASSERT_EQ(data.eval_samples(), 1);
  int32_t tokens[4 * 5], targets[4 * 5];
  data.fill(0, 4, tokens, targets);
  const int32_t starts[] = {1000, 1005, 3000, 3005};
  for (int j = 0; j < 4; ++j)
    for (int t = 0; t < 5; ++t) {
      EXPECT_EQ(tokens[j * 5 + t], starts[j] + t);
      EXPECT_EQ(targets[j * 5 + t], starts[j] + t + 1);
    }
  data.fill_eval(0, 1, tokens, targets);
  EXPECT_EQ(tokens[0], 3010);
}

TEST(WindowDataset, ErrorsSayWhatIsMissing) {
  TempFolder tmp;
  const auto make = [&](int64_t count, int64_t T, double eval) {
    return WindowDataset(one(counting_file(tmp / "t", count, 0)), T, {.eval_fraction = eval})
        .train_samples();
  };
  EXPECT_ERROR(make(16, 16, 0), ErrorCode::data, "at least 17 tokens", "16 tokens in " + tmp.path(),
               "more text, or set max_length (of eval: --max-length) to 15 or less");
  EXPECT_EQ(make(16, 15, 0), 1);  // as advised
  EXPECT_ERROR(make(16, 16, 0.1), ErrorCode::data, "at least 17 tokens", "16 tokens", "7 or less");
  EXPECT_EQ(make(16, 7, 0.1), 1);
  EXPECT_ERROR(make(0, 16, 0), ErrorCode::data, "at least 17 tokens", "0 tokens", "more text");
  EXPECT_ERROR(make(32, 16, 0.1), ErrorCode::data, "at least 33 tokens", "32 tokens", "eval_data");
  EXPECT_EQ(make(33, 16, 0.1), 1);
  EXPECT_ERROR(make(33, 0, 0), ErrorCode::usage, "a sample length (max_length) from 1 to 2^40", "0",
               "1024");
  EXPECT_ERROR(make(33, INT64_MAX, 0), ErrorCode::usage, "max_length", "9223372036854775807",
               "1024");
  EXPECT_ERROR(make(33, 8, 1.0), ErrorCode::usage, "eval_fraction of 0 or more and below 1", "1",
               "0.05");
  EXPECT_ERROR(make(33, 8, -0.1), ErrorCode::usage, "eval_fraction", "-0.1", "0.05");
  EXPECT_ERROR(make(33, 8, NAN), ErrorCode::usage, "eval_fraction", "nan", "0.05");
  EXPECT_ERROR(WindowDataset({}, 8), ErrorCode::data, "at least 9 tokens", "no token file", "text");
}

}  // namespace
}  // namespace snug
