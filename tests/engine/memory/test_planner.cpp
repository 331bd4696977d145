// The solver of plans against every choice there is, its forms, its monotony and its speed; and the
// streams' clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "engine/memory/planner.h"
#include "engine/memory/simulate.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

constexpr SolveOptions kExact{.two_group_tolerance = 0};

struct Best {
  bool feasible = false;
  double seconds = INFINITY;
  int64_t least_peak = kNoLimit;  // whatever the limit
};

// Every choice, its bytes counted along the two passes and not by the solver's formulas.
Best brute_force(const LayerProblem& p) {
  Best best;
  const size_t L = p.layers.size();
  std::vector<size_t> choice(L, 0);
  while (true) {
    int64_t live = 0, peak = 0, host = 0;
    double seconds = 0;
    for (size_t l = 0; l < L; ++l) {  // forward
      const LayerOption& o = p.kinds[static_cast<size_t>(p.layers[l])][choice[l]];
      live += o.saved;
      peak = std::max(peak, live);
      host += o.host;
      seconds += std::max(o.compute, o.link);
    }
    peak = std::max(peak, live + p.tail);
    for (size_t l = L; l-- > 0;) {  // backward
      const LayerOption& o = p.kinds[static_cast<size_t>(p.layers[l])][choice[l]];
      peak = std::max(peak, live + o.transient);
      live -= o.saved;
    }
    if (host <= p.host_limit) {
      best.least_peak = std::min(best.least_peak, peak);
      if (peak <= p.limit) {
        best.feasible = true;
        best.seconds = std::min(best.seconds, seconds);
      }
    }
    size_t l = 0;
    for (; l < L; ++l) {
      if (++choice[l] < p.kinds[static_cast<size_t>(p.layers[l])].size()) break;
      choice[l] = 0;
    }
    if (l == L) return best;
  }
}

LayerProblem random_problem(std::mt19937& random, bool host) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  LayerProblem p;
  const int64_t kinds = draw(1, 3), L = draw(1, 5);
  for (int64_t k = 0; k < kinds; ++k) {
    std::vector<LayerOption> options;
    for (int64_t n = draw(1, 6); n > 0; --n) {
      LayerOption o;
      o.saved = draw(0, 40);
      o.transient = draw(0, 60);
      o.compute = static_cast<double>(draw(1, 30));
      if (host) {
        o.host = draw(0, 2) == 0 ? draw(1, 40) : 0;
        o.link = o.host > 0 ? static_cast<double>(draw(0, 50)) : 0.0;
      }
      options.push_back(o);
    }
    p.kinds.push_back(std::move(options));
  }
  for (int64_t l = 0; l < L; ++l) p.layers.push_back(static_cast<int>(draw(0, kinds - 1)));
  p.tail = draw(0, 60);
  p.limit = draw(10, 40 * L + 60);
  if (host && draw(0, 3) > 0) p.host_limit = draw(0, 30 * L);
  return p;
}

class PlannerAgainstAll : public ::testing::TestWithParam<bool> {};

TEST_P(PlannerAgainstAll, EqualsBruteForceOnRandomStacks) {
  std::mt19937 random(7);
  int feasible = 0, mixed = 0;
  for (int i = 0; i < 300; ++i) {
    const LayerProblem p = random_problem(random, GetParam());
    const Best best = brute_force(p);
    const LayerSolution s = solve_layers(p, kExact);
    ASSERT_EQ(s.feasible, best.feasible) << i;
    const LayerSolution least = least_peak(p);
    ASSERT_EQ(least.feasible, best.least_peak < kNoLimit) << i;
    if (least.feasible) {
      EXPECT_EQ(least.peak, best.least_peak) << i;
      LayerProblem there = p;
      there.limit = best.least_peak;
      EXPECT_DOUBLE_EQ(least.seconds, brute_force(there).seconds) << i;
    }
    if (!best.feasible) continue;
    ++feasible;
    EXPECT_DOUBLE_EQ(s.seconds, best.seconds) << i;
    EXPECT_TRUE(s.optimal);
    EXPECT_DOUBLE_EQ(s.bound, s.seconds);
    const LayerSolution again = evaluate_layers(p, s.choice);
    EXPECT_TRUE(again.feasible);
    EXPECT_LE(again.peak, p.limit);
    EXPECT_LE(again.host, p.host_limit);
    EXPECT_DOUBLE_EQ(again.seconds, s.seconds);
    if (s.groups > 2) ++mixed;
    // The preferred form is never worse than it may be, and says by how much it is worse.
    const LayerSolution loose = solve_layers(p, {.two_group_tolerance = 0.1});
    EXPECT_TRUE(loose.feasible);
    EXPECT_LE(loose.seconds, best.seconds * 1.1 + 1e-9) << i;
    EXPECT_LE(loose.bound, best.seconds + 1e-9) << i;
    EXPECT_EQ(loose.optimal && loose.gap() > 1e-6, false);
  }
  EXPECT_GT(feasible, 150);
  EXPECT_GT(mixed, 10) << "no stack needed more than two groups";
}
INSTANTIATE_TEST_SUITE_P(Host, PlannerAgainstAll, ::testing::Bool());

// Options as a block has them: seven tensors that are kept or made again.
std::vector<LayerOption> like_a_block(size_t options, uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const int64_t mb[7] = {8, 24, 8, 8, 8, 32, 32};
  double again[7];
  for (double& t : again) t = draw(0.2, 3);
  std::vector<LayerOption> list;
  for (size_t i = 0; i < options; ++i) {
    LayerOption o{.saved = 8 << 20, .transient = 64 << 20, .compute = 20};
    for (size_t k = 0; k < 7; ++k)
      if (i >> k & 1) {
        o.compute += again[k];
        o.transient += mb[k] << 20;
      } else {
        o.saved += mb[k] << 20;
      }
    // Beyond the sets of seven there are others a little different.
    o.saved += static_cast<int64_t>(i / 128) << 12;
    o.compute -= static_cast<double>(i / 128) * 1e-3;
    list.push_back(o);
  }
  return list;
}

TEST(Planner, TwoGroupsAreCloseAndPreferredWithinTheTolerance) {
  double worst = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    LayerProblem p;
    p.kinds.push_back(like_a_block(128, seed));
    p.layers.assign(24, 0);
    p.tail = int64_t{200} << 20;
    const int64_t least = least_peak(p).peak;
    const int64_t most = 24 * p.kinds[0][0].saved + p.kinds[0][0].transient + p.tail;
    for (int i = 1; i < 8; ++i) {
      p.limit = least + (most - least) * i / 8;
      const LayerSolution exact = solve_layers(p, kExact);
      const LayerSolution two = solve_layers(p, {.two_group_tolerance = 1});
      ASSERT_TRUE(exact.feasible && exact.optimal && two.feasible);
      EXPECT_LE(two.groups, 2);
      EXPECT_GE(two.seconds, exact.seconds - 1e-9);
      EXPECT_LE(two.seconds * (1 - two.gap()), exact.seconds + 1e-9) << "the bound is none";
      worst = std::max(worst, two.seconds / exact.seconds - 1);
      const LayerSolution usual = solve_layers(p);
      EXPECT_LE(usual.seconds, exact.seconds * 1.005 + 1e-9);
      if (two.seconds <= exact.seconds * 1.005) {
        EXPECT_LE(usual.groups, 2);
      }
      const std::string text = optimality_text(usual);
      EXPECT_NE(text.find(usual.optimal ? "optimal within" : "% of the best"), std::string::npos);
    }
  }
  EXPECT_GT(worst, 0);
  EXPECT_LT(worst, 0.03);
}

TEST(Planner, MoreMemoryIsNeverSlower) {
  LayerProblem p;
  p.kinds = {like_a_block(128, 3), like_a_block(64, 4)};
  for (int l = 0; l < 20; ++l) p.layers.push_back(l % 5 == 0);
  p.tail = int64_t{300} << 20;
  const int64_t least = least_peak(p).peak;
  double before = INFINITY;
  for (int i = 0; i <= 60; ++i) {
    p.limit = least + i * (int64_t{40} << 20) + i * i;
    const LayerSolution s = solve_layers(p, kExact);
    ASSERT_TRUE(s.feasible && s.optimal) << i;
    EXPECT_LE(s.seconds, before) << i;
    EXPECT_LE(s.peak, p.limit);
    before = s.seconds;
  }
  p.limit = least - 1;
  EXPECT_FALSE(solve_layers(p, kExact).feasible);
  EXPECT_EQ(optimality_text(solve_layers(p, kExact)), "no choice fits");
}

TEST(Planner, EfficientOptionsAreThoseThatNoneBeats) {
  const std::vector<LayerOption> options = {{.saved = 10, .transient = 5, .compute = 3},
                                            {.saved = 10, .transient = 5, .compute = 3},
                                            {.saved = 10, .transient = 5, .compute = 4},
                                            {.saved = 8, .transient = 7, .compute = 4},
                                            {.saved = 8, .transient = 9, .compute = 4},
                                            {.saved = 10, .transient = 4, .compute = 9},
                                            {.saved = 10, .transient = 5, .host = 1, .compute = 2}};
  EXPECT_EQ(efficient_options(options), (std::vector<int>{0, 3, 5, 6}));
}

// A label that is cut off costs the proof and not the plan: the bound still holds.
TEST(Planner, CutOffItStillGivesAPlanAndABound) {
  LayerProblem p;
  p.kinds.push_back(like_a_block(128, 5));
  p.layers.assign(30, 0);
  p.tail = int64_t{100} << 20;
  p.limit = int64_t{2000} << 20;
  const LayerSolution exact = solve_layers(p, kExact);
  const LayerSolution cut = solve_layers(p, {.two_group_tolerance = 0, .most_labels = 3});
  ASSERT_TRUE(exact.feasible && cut.feasible);
  EXPECT_LE(cut.bound, exact.seconds + 1e-9);
  EXPECT_GE(cut.seconds, exact.seconds - 1e-9);
}

TEST(Planner, RefusesWhatIsNoProblem) {
  const auto broken = [](auto&& change) {
    LayerProblem p;
    p.kinds = {{LayerOption{}}};
    p.layers = {0};
    change(p);
    return test::expect_error(ErrorCode::internal, {}, [&] { solve_layers(p); });
  };
  EXPECT_NE(broken([](LayerProblem& p) { p.kinds[0].clear(); }).find("have an option"),
            std::string::npos);
  EXPECT_NE(broken([](LayerProblem& p) { p.layers[0] = 1; }).find("kinds that exist"),
            std::string::npos);
  EXPECT_NE(broken([](LayerProblem& p) { p.kinds[0][0].saved = -1; }).find("0 or more"),
            std::string::npos);
  EXPECT_NE(broken([](LayerProblem& p) { p.tail = -1; }).find("tail"), std::string::npos);
}

TEST(SlowPlanner, FortyEightLayersOfTwoHundredOptions) {
  LayerProblem p;
  p.kinds.push_back(like_a_block(200, 11));
  p.layers.assign(48, 0);
  p.tail = int64_t{400} << 20;
  const int64_t least = least_peak(p).peak;
  double total = 0;
  for (int i = 0; i <= 10; ++i) {
    p.limit = least + i * (int64_t{500} << 20);
    const auto started = std::chrono::steady_clock::now();
    const LayerSolution s = solve_layers(p, kExact);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    total += seconds;
    EXPECT_TRUE(s.optimal);
    printf("limit %lld: %.4f s to solve, %d groups\n", static_cast<long long>(p.limit), seconds,
           s.groups);
  }
  printf("%.4f s in all\n", total);
}

TEST(Simulate, StreamsWaitForEachOther) {
  // 0: compute 3; 1: copy 5 after it; 2: compute 1; 3: compute 2 after the copy.
  Program p;
  const auto op = [&](StreamId stream) {
    p.ops.push_back({.name = "op",
                     .scope = {},
                     .flops = 0,
                     .bytes = 0,
                     .time = 0,
                     .variant = {},
                     .stream = stream});
  };
  const auto sync = [&](SyncRecord::Kind kind, StreamId stream, int32_t event) {
    p.syncs.push_back({.kind = kind,
                       .stream = stream,
                       .event = event,
                       .time = 0,
                       .op = static_cast<int32_t>(p.ops.size())});
  };
  op(kCompute);
  sync(SyncRecord::Kind::record, kCompute, 0);
  sync(SyncRecord::Kind::wait, kToHost, 0);
  op(kToHost);
  sync(SyncRecord::Kind::record, kToHost, 1);
  op(kCompute);
  sync(SyncRecord::Kind::wait, kCompute, 1);
  // An event of what waited counts the waiting.
  sync(SyncRecord::Kind::record, kCompute, 2);
  op(kCompute);
  sync(SyncRecord::Kind::wait, kToDevice, 2);
  op(kToDevice);
  const std::vector<OpSpan> spans = op_spans(p, {3, 5, 1, 2, 1});
  const double begins[] = {0, 3, 3, 8, 8}, ends[] = {3, 8, 4, 10, 9};
  ASSERT_EQ(spans.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(spans[i].begin, begins[i]) << i;
    EXPECT_EQ(spans[i].end, ends[i]) << i;
  }
  EXPECT_EQ(last_end(spans), 10);
  EXPECT_EQ(last_end(op_spans(p, {3, 5})), 8) << "what has no time takes none";
  EXPECT_EQ(last_end({}), 0);
}

}  // namespace
}  // namespace snug
