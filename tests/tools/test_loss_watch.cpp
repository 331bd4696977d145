#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tools/checkpoint/loss_watch.h"

namespace snug {
namespace {

using Verdict = LossWatch::Verdict;

// A curve that falls from 10 to 3 with a little noise; norms around 2.
struct Curve {
  std::mt19937 random{3};
  double noise() { return (static_cast<double>(random() % 2001) - 1000) / 1000; }
  double loss(int64_t step) {
    return 3 + 7 * std::exp(-static_cast<double>(step) / 60) + 0.05 * noise();
  }
  double norm() { return 2 + 0.5 * noise(); }
};

TEST(LossWatch, AGoodRunHasNothingToSay) {
  LossWatch watch;
  Curve curve;
  for (int64_t step = 1; step <= 3000; ++step) {
    const Verdict v = watch.look(step, curve.loss(step), curve.norm());
    EXPECT_EQ(v.text, "") << step;
    EXPECT_FALSE(v.diverged);
  }
}

TEST(LossWatch, NothingIsSaidBeforeItKnowsWhatIsUsual) {
  LossWatch watch;
  for (int64_t step = 1; step <= 32; ++step)
    EXPECT_EQ(watch.look(step, step % 7 == 0 ? 50.0 : 3.0, step % 5 == 0 ? 900.0 : 1.0).text, "");
  EXPECT_NE(watch.look(33, 50.0, 900.0).text, "");
}

TEST(LossWatch, SpikesAreSaidOnceInFiftySteps) {
  LossWatch watch;
  std::vector<std::string> said;
  for (int64_t step = 1; step <= 200; ++step) {
    const bool wild = step == 100 || step == 110 || step == 120 || step == 151;
    const Verdict v = watch.look(step, 3.0, wild ? 17.0 : 2.0);
    if (!v.text.empty()) said.push_back(v.text);
  }
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0],
            "  warning: step 100: the gradient norm is 17, 8 times the median 2 of the 99 steps "
            "before");
  EXPECT_EQ(said[1],
            "  warning: step 151: the gradient norm is 17, 8 times the median 2 of the 128 steps "
            "before (2 more since the last warning)");

  LossWatch losses;
  said.clear();
  for (int64_t step = 1; step <= 120; ++step) {
    const Verdict v = losses.look(step, step == 60 || step == 80 || step == 115 ? 3.9 : 3.0, 1.0);
    if (!v.text.empty()) said.push_back(v.text);
  }
  ASSERT_EQ(said.size(), 2u);
  EXPECT_EQ(said[0], "  warning: step 60: the loss is 3.9, the median of the 59 steps before 3");
  EXPECT_EQ(said[1],
            "  warning: step 115: the loss is 3.9, the median of the 114 steps before 3 (1 more "
            "since the last warning)");
}

// The fiftieth step behind a warning may have the next one, of norms and of losses alike.
TEST(LossWatch, FiftyStepsAreQuiet) {
  for (const bool of_losses : {false, true})
    for (const int64_t next : {149, 150}) {
      LossWatch watch;
      int said = 0;
      for (int64_t step = 1; step <= 160; ++step) {
        const bool wild = step == 100 || step == next;
        said += !watch.look(step, wild && of_losses ? 9.0 : 3.0, wild && !of_losses ? 17.0 : 2.0)
                     .text.empty();
      }
      EXPECT_EQ(said, next == 150 ? 2 : 1) << of_losses << " " << next;
    }
}

// Just below and just above each threshold.
TEST(LossWatch, Thresholds) {
  const auto after = [](double loss, double norm, double spread) {
    LossWatch watch;
    // Half of the losses at 4 - spread, half at 4 + spread: median 4, MAD spread.
    for (int64_t step = 1; step <= 64; ++step)
      watch.look(step, step % 2 ? 4 - spread : 4 + spread, 2.0);
    return watch.look(65, loss, norm).text;
  };
  EXPECT_EQ(after(4, 15.99, 0.0), "");
  EXPECT_NE(after(4, 16.01, 0.0), "");
  EXPECT_EQ(after(4.99, 2, 0.01), "");
  EXPECT_NE(after(5.01, 2, 0.01), "");
  const double deviations = 6 * 1.4826 * 0.2;
  EXPECT_EQ(after(4 + deviations - 0.01, 2, 0.2), "");
  EXPECT_NE(after(4 + deviations + 0.01, 2, 0.2), "");
}

TEST(LossWatch, DivergenceIsSaidOnceAndAgainAfterItCalmed) {
  LossWatch watch;
  int64_t step = 0, diverged = 0;
  std::string said;
  const auto feed = [&](double loss, int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      const Verdict v = watch.look(++step, loss, 1.0);
      diverged += v.diverged;
      if (v.diverged) said = v.text;
    }
  };
  feed(4.0, 40);
  feed(5.24, 40);  // 1.25 x 4 + 0.25 = 5.25
  EXPECT_EQ(diverged, 0);
  feed(5.26, 40);
  EXPECT_EQ(diverged, 1);
  EXPECT_NE(
      said.find("the loss diverges: the median of the last 32 steps is 5.26, at step 32 it was 4"),
      std::string::npos)
      << said;
  feed(9.0, 100);
  EXPECT_EQ(diverged, 1);
  feed(4.51, 100);  // 1.1 x 4 + 0.1 = 4.5: not calm yet
  feed(9.0, 100);
  EXPECT_EQ(diverged, 1);
  feed(4.49, 100);
  feed(9.0, 100);
  EXPECT_EQ(diverged, 2);
}

// A few wild steps move no median.
TEST(LossWatch, SpikesAreNoDivergence) {
  LossWatch watch;
  bool diverged = false;
  for (int64_t step = 1; step <= 400; ++step)
    diverged |= watch.look(step, step % 3 == 0 ? 20.0 : 3.0, 1.0).diverged;
  EXPECT_FALSE(diverged);
}

TEST(LossWatch, ARestoredWatchSaysTheSame) {
  const auto loss = [](int64_t step) { return step > 150 ? 8.0 : step % 40 == 0 ? 7.0 : 3.0; };
  const auto norm = [](int64_t step) { return step % 33 == 0 ? 90.0 : 1.0 + 0.01 * (step % 5); };
  LossWatch whole;
  std::vector<std::string> said;
  for (int64_t step = 1; step <= 300; ++step)
    said.push_back(whole.look(step, loss(step), norm(step)).text);
  for (const int64_t cut : {1, 31, 70, 129, 140, 170, 200}) {
    LossWatch first, second;
    for (int64_t step = 1; step <= cut; ++step) first.look(step, loss(step), norm(step));
    second.restore(first.state());
    for (int64_t step = cut + 1; step <= 300; ++step)
      EXPECT_EQ(second.look(step, loss(step), norm(step)).text, said[static_cast<size_t>(step - 1)])
          << cut << " " << step;
  }
}

}  // namespace
}  // namespace snug
