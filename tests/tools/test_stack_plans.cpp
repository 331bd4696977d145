// Plans of two groups of layers against what a reader works out by hand: bytes at each moment, the streams of a
// step one copy at a time, and every split tried.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tools/costs/stack_plans.h"

namespace snug {
namespace {

StackOption option_by(std::mt19937& random, bool away) {
  const auto any = [&](int most) { return static_cast<int64_t>(random() % (most + 1u)); };
  const auto seconds = [&](int most) { return 0.25 * static_cast<double>(any(most)); };
  StackOption o;
  o.saved = any(6);
  o.backward = o.saved + any(8);
  o.forward = o.saved + any(8);
  o.forward_seconds = 1 + seconds(8);
  o.backward_seconds = 1 + seconds(12);
  o.forward_after = o.forward;
  if (!away) return o;
  o.coming = o.host = 1 + any(5);
  o.leaving = any(5);
  o.forward_after = o.forward + o.leaving;
  o.to_host = 0.25 + seconds(12);
  o.to_device = 0.25 + seconds(12);
  o.before_sent = std::min(o.forward_seconds, seconds(4));
  o.after_arrival = std::min(o.backward_seconds, seconds(4));
  return o;
}

struct Case {
  StackOptions options;
  StackProblem problem;

  explicit Case(unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 3; ++i) {
      options.kept.push_back(option_by(random, false));
      options.away.push_back(option_by(random, true));
    }
    problem.options = &options;
    problem.layers = 2 + random() % 6;
    problem.tail = static_cast<int64_t>(random() % 10);
    problem.tail_back = static_cast<int64_t>(random() % 10);
    problem.hidden = 0.25 * static_cast<double>(random() % 12);
  }
};

// The moments of both passes, layer by layer.
int64_t peak_by_hand(const StackProblem& p, const StackOption& A, const StackOption& B,
                     int64_t first) {
  const auto way = [&](int64_t layer) -> const StackOption& { return layer < first ? A : B; };
  int64_t saved = 0, peak = 0;
  for (int64_t l = 0; l < p.layers; ++l) {
    const bool behind_away = l > 0 && l - 1 < first;
    int64_t own = way(l).forward;
    if (behind_away) own = l < first ? A.forward_after : A.leaving + B.forward;
    peak = std::max(peak, saved + own);
    saved += way(l).saved;
  }
  peak = std::max(peak, saved + p.tail);
  if (first == p.layers) peak = std::max(peak, saved + p.tail_back + A.coming);
  for (int64_t l = p.layers - 1; l >= 0; --l) {
    // What layers below saved; the layer below, if it went away, comes back meanwhile.
    saved -= way(l).saved;
    peak = std::max(peak, saved + (l > 0 && l - 1 < first ? A.coming : 0) + way(l).backward);
  }
  return peak;
}

// Compute and the link at once; of a layer's copies the whole, begun when the first may.
double seconds_by_hand(const StackProblem& p, const StackOption& A, const StackOption& B,
                       int64_t first) {
  double forward = 0, link = 0;
  for (int64_t l = 0; l < p.layers; ++l) {
    const StackOption& own = l < first ? A : B;
    const double begun = forward;
    forward += own.forward_seconds;
    // The first that stays waits at its end for all that leaves.
    if (l == first) forward = std::max(forward, link);
    if (l < first) link = std::max(link, begun + own.before_sent) + own.to_host;
  }
  forward = std::max(forward, link);
  double backward = 0, back = 0, above = -p.hidden;
  for (int64_t l = p.layers - 1; l >= 0; --l) {
    const StackOption& own = l < first ? A : B;
    const double begun = backward;
    backward = begun + own.backward_seconds;
    if (l < first) {  // asked for when the layer above begins its backward
      back = l == p.layers - 1 ? above + own.to_device : std::max(back, above) + own.to_device;
      backward = std::max(backward, back + own.after_arrival);
    }
    above = begun;
  }
  return forward + backward;
}

TEST(StackPlans, BytesAreThoseOfEveryMoment) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    const Case c(seed);
    const StackProblem& p = c.problem;
    for (int a = 0; a < 3; ++a)
      for (int k = 0; k < 3; ++k)
        for (int64_t first = 1; first <= p.layers; ++first) {
          const StackOption& A = c.options.away[static_cast<size_t>(a)];
          const StackOption& B = c.options.kept[static_cast<size_t>(k)];
          const StackPlan plan = stack_plan(p, a, k, first);
          ASSERT_EQ(plan.peak, peak_by_hand(p, A, B, first))
              << "seed " << seed << ", " << first << " of " << p.layers;
          EXPECT_EQ(plan.host, first * A.host);
          EXPECT_LE(plan.bound, seconds_by_hand(p, A, B, first) + 1e-9)
              << "seed " << seed << ", " << first << " of " << p.layers;
        }
  }
}

// What binds, one after the other: two layers away of three, all away, copies that nothing hides.
TEST(StackPlans, BoundsAreWhatBinds) {
  StackOptions options;
  StackOption away, kept;
  away.forward_seconds = 2;
  away.backward_seconds = 3;
  away.before_sent = 0.5;
  away.after_arrival = 0.75;
  away.to_host = 1;
  away.to_device = 1.25;
  kept.forward_seconds = 4;
  kept.backward_seconds = 5;
  options.away = {away};
  options.kept = {kept};
  StackProblem p;
  p.options = &options;
  p.layers = 3;
  p.hidden = 0.125;
  // Computing: 2 + 2 + 4 and 5 + 3 + 3.
  EXPECT_EQ(stack_plan(p, 0, 0, 2).bound, 8 + 11);
  options.away[0].to_host = 10;
  // The one that stays waits for 0.5 + 2 * 10, and no layer is behind it.
  EXPECT_EQ(stack_plan(p, 0, 0, 2).bound, 20.5 + 11);
  // One away: 0.5 + 10, then the second of those that stay.
  EXPECT_EQ(stack_plan(p, 0, 0, 1).bound, 10.5 + 4 + 13);
  options.away[0].to_device = 20;
  // 2 * 20 and 0.75 behind the backward of all but the first that stays; of one away of two that stay.
  EXPECT_EQ(stack_plan(p, 0, 0, 2).bound, 20.5 + 40.75);
  EXPECT_EQ(stack_plan(p, 0, 0, 1).bound, 10.5 + 4 + 20.75 + 5);
  // All away: the first that comes back was asked for 0.125 before.
  EXPECT_EQ(stack_plan(p, 0, 0, 3).bound, 30.5 + 60.75 - 0.125);
}

// No split is left out that keeps the limits and is below, whatever the limits are.
TEST(StackPlans, NoneIsPassedOver) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    Case c(seed);
    StackProblem& p = c.problem;
    std::mt19937 random(seed + 1000);
    std::vector<StackPlan> all;
    for (int a = 0; a < 3; ++a) {
      for (int k = 0; k < 3; ++k)
        for (int64_t first = 1; first < p.layers; ++first)
          all.push_back(stack_plan(p, a, k, first));
      all.push_back(stack_plan(p, a, 0, p.layers));
    }
    for (int round = 0; round < 12; ++round) {
      const StackPlan& some = all[random() % all.size()];
      p.limit = round % 3 == 0 ? kNoLimit : some.peak - static_cast<int64_t>(random() % 2);
      p.host_limit = round % 4 == 0 ? all[random() % all.size()].host : kNoLimit;
      p.sum_limit = round % 5 == 0 ? some.peak + some.host : kNoLimit;
      const double below = all[random() % all.size()].bound + (round % 2 == 0 ? 0 : 1e-6);
      std::vector<std::string> expected, found;
      const auto words = [](const StackPlan& plan) {
        return fmt::format("{} {} {}: {} {} {}", plan.away, plan.kept, plan.first, plan.peak,
                           plan.host, plan.bound);
      };
      const StackPlan* least = nullptr;
      for (const StackPlan& plan : all) {
        const bool host = plan.host <= p.host_limit && plan.peak + plan.host <= p.sum_limit;
        if (host && plan.peak <= p.limit && plan.bound < below) expected.push_back(words(plan));
        if (host && (least == nullptr || plan.peak < least->peak ||
                     (plan.peak == least->peak && plan.bound < least->bound)))
          least = &plan;
      }
      double before = 0;
      for (const StackPlan& plan : stack_plans(p, below)) {
        EXPECT_GE(plan.bound, before);
        before = plan.bound;
        found.push_back(words(plan));
      }
      std::sort(expected.begin(), expected.end());
      std::sort(found.begin(), found.end());
      ASSERT_EQ(found, expected) << "seed " << seed << ", round " << round;
      StackPlan smallest;
      ASSERT_EQ(least_stack(p, &smallest), least != nullptr);
      if (least != nullptr) {
        EXPECT_EQ(smallest.peak, least->peak);
        EXPECT_EQ(smallest.bound, least->bound);
      }
    }
  }
}

// As the solver of any way for any layer has them: kept ones first, a layer's way by its number.
TEST(StackPlans, ComeToTheSolverAsTheyAre) {
  Case c(7);
  StackProblem& p = c.problem;
  p.layers = 4;
  for (size_t i = 0; i < 3; ++i) {
    c.options.kept[i].recompute = LayerWords(fmt::format("kept{}", i));
    c.options.away[i].recompute = LayerWords(fmt::format("away{}", i));
    c.options.away[i].offload = LayerWords(fmt::format("slots{}", i));
  }
  p.limit = 100;
  p.host_limit = 90;
  p.sum_limit = 150;
  const LinkedProblem q = linked_problem(p);
  ASSERT_EQ(q.options.size(), 6u);
  ASSERT_EQ(q.pairs.size(), 36u);
  EXPECT_EQ(q.layers, 4);
  EXPECT_EQ(q.tail, p.tail);
  EXPECT_EQ(q.tail_back, p.tail_back);
  EXPECT_EQ(q.hidden, p.hidden);
  EXPECT_EQ(q.limit, 100);
  EXPECT_EQ(q.host_limit, 50);  // both together at most 150
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(q.alone[i], c.options.kept[i].forward);
    EXPECT_EQ(q.alone[3 + i], c.options.away[i].forward);
    EXPECT_EQ(q.options[3 + i].to_host, c.options.away[i].to_host);
  }
  const StackPlan plan = stack_plan(p, 1, 2, 3);
  EXPECT_EQ(linked_choice(p, plan), (std::vector<int>{4, 4, 4, 2}));
  EXPECT_EQ(stack_recompute(p, plan), linked_recompute(c.options, {4, 4, 4, 2}));
  EXPECT_EQ(stack_offload(p, plan), linked_offload(c.options, {4, 4, 4, 2}));
  EXPECT_NE(stack_recompute(p, plan), linked_recompute(c.options, {4, 4, 2, 2}));
  EXPECT_NE(stack_recompute(p, plan), linked_recompute(c.options, {4, 4, 4, 1}));
  // Layers below those of the options run as the first does.
  c.options.below = 2;
  EXPECT_EQ(stack_recompute(p, plan), "0-4: away1, 5: kept2");
  EXPECT_EQ(linked_recompute(c.options, {4, 4, 4, 2}), stack_recompute(p, plan));
  EXPECT_EQ(linked_offload(c.options, {4, 4, 4, 2}), stack_offload(p, plan));
}

}  // namespace
}  // namespace snug
