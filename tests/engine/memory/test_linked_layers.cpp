// The solver of stacks with a link against every choice there is, run on three streams one layer
// after another; its bounds, its limits and its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/memory/linked_layers.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

struct Outcome {
  double seconds = 0;
  int64_t peak = 0, host = 0;
};

// The streams' clocks and the live bytes, forward and then backward, with none of the solver's
// algebra: time goes one way, and what is alive is added and taken away.
Outcome run(const LinkedProblem& p, const std::vector<int>& choice) {
  Outcome out;
  const int L = static_cast<int>(choice.size());
  const auto option = [&](int l) -> const LinkedOption& {
    return p.options[static_cast<size_t>(choice[static_cast<size_t>(l)])];
  };
  int64_t live = 0;
  const auto reach = [&](int64_t bytes) { out.peak = std::max(out.peak, bytes); };
  double compute = 0, link = 0, sent_before = 0;  // when the copies of the layer before are through
  for (int l = 0; l < L; ++l) {
    const LinkedOption& o = option(l);
    const double begin = compute;
    compute += o.forward_seconds;
    int64_t forward = p.alone[static_cast<size_t>(choice[static_cast<size_t>(l)])];
    if (l > 0 && option(l - 1).linked()) {
      const LinkedPair& pair =
          p.pair(choice[static_cast<size_t>(l - 1)], choice[static_cast<size_t>(l)]);
      compute = std::max(compute, sent_before + pair.after_sent);
      forward = pair.forward;
    }
    reach(live + forward);
    if (o.linked()) sent_before = link = std::max(link, begin + o.before_sent) + o.to_host;
    live += o.saved;
    out.host += o.host;
  }
  compute = std::max(compute, link);
  reach(live + p.tail);
  double device = compute, arrived = compute;
  compute += p.hidden;
  int64_t here = 0;  // has come back
  if (option(L - 1).linked()) {
    arrived = device += option(L - 1).to_device;
    here = option(L - 1).coming;
    reach(live + p.tail_back + here);
  }
  for (int l = L - 1; l >= 0; --l) {
    const LinkedOption& o = option(l);
    double next_arrived = 0;
    int64_t next = 0;
    if (l > 0 && option(l - 1).linked()) {
      next_arrived = device = std::max(device, compute) + option(l - 1).to_device;
      next = option(l - 1).coming;
    }
    live -= o.saved;
    reach(live + next + o.backward);
    compute += o.backward_seconds;
    if (o.linked()) compute = std::max(compute, arrived + o.after_arrival);
    arrived = next_arrived;
    here = next;
  }
  out.seconds = std::max(compute, device) - p.hidden;
  return out;
}

template <class F>
void for_choices(const LinkedProblem& p, F&& f) {
  std::vector<int> choice(static_cast<size_t>(p.layers), 0);
  while (true) {
    f(choice);
    size_t l = 0;
    for (; l < choice.size(); ++l) {
      if (++choice[l] < static_cast<int>(p.options.size())) break;
      choice[l] = 0;
    }
    if (l == choice.size()) return;
  }
}

LinkedProblem random_problem(std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto part = [&](double whole) { return whole * static_cast<double>(draw(0, 4)) / 4; };
  LinkedProblem p;
  p.layers = draw(1, 6);
  const int64_t n = draw(1, 4);
  for (int64_t i = 0; i < n; ++i) {
    LinkedOption o;
    o.saved = draw(0, 30);
    o.backward = o.saved + draw(0, 40);
    o.forward_seconds = static_cast<double>(draw(1, 12));
    o.backward_seconds = o.forward_seconds + static_cast<double>(draw(1, 20));
    if (draw(0, 1) == 0) {
      o.saved /= 3;
      o.coming = o.host = draw(1, 25);
      o.to_host = static_cast<double>(draw(1, 25));
      o.to_device = o.to_host;
      o.before_sent = part(o.forward_seconds);
      o.after_arrival = part(o.backward_seconds);
    }
    p.options.push_back(o);
    p.alone.push_back(o.saved + draw(0, 30));
  }
  for (int64_t a = 0; a < n; ++a)
    for (int64_t b = 0; b < n; ++b) {
      LinkedPair pair{.forward = p.alone[static_cast<size_t>(b)]};
      if (p.options[static_cast<size_t>(a)].linked()) {
        pair.forward += draw(0, 20);
        pair.after_sent = part(p.options[static_cast<size_t>(b)].forward_seconds);
      }
      p.pairs.push_back(pair);
    }
  p.tail = draw(0, 40);
  p.tail_back = draw(0, p.tail);
  p.hidden = static_cast<double>(draw(0, 6));
  p.limit = draw(20, 30 * p.layers + 60);
  if (draw(0, 2) == 0) p.host_limit = draw(0, 20 * p.layers);
  return p;
}

TEST(LinkedLayers, EqualBruteForceOnRandomStacks) {
  std::mt19937 random(11);
  int feasible = 0, linked = 0, mixed = 0;
  for (int i = 0; i < 300; ++i) {
    const LinkedProblem p = random_problem(random);
    double best = INFINITY, two = INFINITY;  // of all, and of two groups at most
    for_choices(p, [&](const std::vector<int>& choice) {
      const Outcome out = run(p, choice);
      const LinkedSolution s = evaluate_linked(p, choice);
      ASSERT_EQ(s.peak, out.peak) << i;
      ASSERT_EQ(s.host, out.host) << i;
      ASSERT_NEAR(s.seconds, out.seconds, 1e-9) << i;
      ASSERT_EQ(s.feasible, out.peak <= p.limit && out.host <= p.host_limit);
      if (!s.feasible) return;
      best = std::min(best, out.seconds);
      int changes = 0;
      for (size_t l = 1; l < choice.size(); ++l) changes += choice[l] != choice[l - 1];
      if (changes < 2) two = std::min(two, out.seconds);
    });
    const LinkedSolution s = solve_linked(p, INFINITY, 100000);
    ASSERT_EQ(s.feasible, best < INFINITY) << i;
    EXPECT_LE(linked_bound(p), best * (1 + 1e-9)) << i;
    // Asked for no more than enough it may stop sooner, and nowhere else.
    const double bound = linked_bound(p);
    for (const double share : {0.1, 0.9, 0.999, 1.0, 1.001, 2.0}) {
      const double asked = linked_bound(p, bound * share);
      EXPECT_LE(asked, bound) << i;
      if (share > 1)
        EXPECT_EQ(asked, bound) << i;
      else
        EXPECT_GE(asked, bound * share) << i;
    }
    if (!s.feasible) continue;
    ++feasible;
    EXPECT_NEAR(s.seconds, best, 1e-9) << i;
    EXPECT_FALSE(s.cut);
    EXPECT_NEAR(s.bound, best, 1e-9);
    EXPECT_NEAR(run(p, s.choice).seconds, best, 1e-9);
    linked += s.host > 0;
    mixed += best < two * (1 - 1e-9);
    // Under a ceiling it is found, or said not to be there.
    EXPECT_NEAR(solve_linked(p, best * (1 + 1e-6), 100000).seconds, best, 1e-9);
    const LinkedSolution none = solve_linked(p, best, 100000);
    EXPECT_FALSE(none.feasible);
    EXPECT_NEAR(none.bound, best, 1e-9);
    // Cut off, it is still a choice that fits, and the bound one.
    const LinkedSolution cut = solve_linked(p, INFINITY, 1);
    EXPECT_LE(cut.bound, best * (1 + 1e-9)) << i;
    if (cut.feasible) {
      EXPECT_GE(cut.seconds, best * (1 - 1e-9));
    }
  }
  EXPECT_GT(feasible, 150);
  EXPECT_GT(linked, 40) << "the host is never worth it";
  EXPECT_GT(mixed, 5) << "two groups are always enough";
}

TEST(LinkedLayers, MoreMemoryIsNeverSlower) {
  std::mt19937 random(5);
  for (int i = 0; i < 20; ++i) {
    LinkedProblem p = random_problem(random);
    p.layers = 12;
    p.host_limit = kNoLimit;
    double before = INFINITY;
    for (p.limit = 20; p.limit < 500; p.limit += 10) {
      const LinkedSolution s = solve_linked(p, INFINITY, 100000);
      ASSERT_FALSE(s.cut);
      if (!s.feasible) continue;
      EXPECT_LE(s.seconds, before * (1 + 1e-9)) << p.limit;
      EXPECT_LE(s.peak, p.limit);
      before = s.seconds;
    }
    EXPECT_LT(before, INFINITY);
  }
}

TEST(LinkedLayers, TheSmallestPeakIsThatOfBruteForce) {
  std::mt19937 random(23);
  int feasible = 0, mixed = 0;
  for (int i = 0; i < 300; ++i) {
    LinkedProblem p = random_problem(random);
    p.limit = 1;  // is nothing to it
    int64_t least = kNoLimit, two = kNoLimit;
    for_choices(p, [&](const std::vector<int>& choice) {
      const Outcome out = run(p, choice);
      if (out.host > p.host_limit) return;
      least = std::min(least, out.peak);
      int changes = 0;
      for (size_t l = 1; l < choice.size(); ++l) changes += choice[l] != choice[l - 1];
      if (changes < 2) two = std::min(two, out.peak);
    });
    const LinkedSolution s = least_linked(p, kNoLimit);
    ASSERT_EQ(s.feasible, least < kNoLimit) << i;
    EXPECT_FALSE(least_linked(p, least).feasible) << i;
    if (!s.feasible) continue;
    ++feasible;
    EXPECT_EQ(s.peak, least) << i;
    EXPECT_EQ(run(p, s.choice).peak, least) << i;
    EXPECT_LE(s.host, p.host_limit);
    EXPECT_EQ(least_linked(p, least + 1).peak, least);
    mixed += least < two;
  }
  EXPECT_GT(feasible, 250);
  EXPECT_GT(mixed, 5) << "two groups are always as small";
}

// A link that takes two layers' time for one layer's tensors: every other layer sends, and nobody
// waits. Two groups must let the first half wait.
TEST(LinkedLayers, EveryOtherLayerSendsWhereTheLinkTakesTwo) {
  LinkedProblem p;
  p.options = {{.saved = 10, .backward = 10, .forward_seconds = 1, .backward_seconds = 2},
               {.backward = 10,
                .coming = 10,
                .host = 10,
                .forward_seconds = 1,
                .backward_seconds = 2,
                .to_host = 1.9,
                .to_device = 1.9,
                .before_sent = 0.1,
                .after_arrival = 1.9}};
  p.alone = {10, 10};
  p.pairs = {{.forward = 10}, {.forward = 10}, {.forward = 20}, {.forward = 20, .after_sent = 0.9}};
  p.layers = 16;
  p.limit = 100;
  const LinkedSolution s = solve_linked(p, INFINITY, 1000);
  ASSERT_TRUE(s.feasible);
  EXPECT_FALSE(s.cut);
  EXPECT_NEAR(s.seconds, 16 * 3.0, 1e-9) << "nobody waits";
  double two = INFINITY;
  for (int first = 0; first <= 16; ++first)
    for (int order = 0; order < 2; ++order) {
      std::vector<int> choice(16, 1 - order);
      std::fill_n(choice.begin(), first, order);
      const LinkedSolution t = evaluate_linked(p, choice);
      if (t.feasible) two = std::min(two, t.seconds);
    }
  EXPECT_GT(two, 1.05 * s.seconds);
}

TEST(LinkedLayers, RefuseWhatIsNoProblem) {
  const auto broken = [](auto&& change) {
    LinkedProblem p;
    p.options = {LinkedOption{}};
    p.pairs = {LinkedPair{}};
    p.alone = {0};
    p.layers = 1;
    change(p);
    return test::expect_error(ErrorCode::internal, {}, [&] { solve_linked(p, INFINITY, 10); });
  };
  using P = LinkedProblem;
  EXPECT_NE(broken([](P& p) { p.layers = 0; }).find("layers and options"), std::string::npos);
  EXPECT_NE(broken([](P& p) { p.pairs.clear(); }).find("every pair"), std::string::npos);
  EXPECT_NE(broken([](P& p) { p.options[0].saved = -1; }).find("bytes"), std::string::npos);
  EXPECT_NE(broken([](P& p) { p.options[0].before_sent = 1; }).find("of a whole"),
            std::string::npos);
  EXPECT_NE(broken([](P& p) { p.pairs[0].after_sent = 1; }).find("a wait inside"),
            std::string::npos);
  EXPECT_NE(broken([](P& p) { p.pairs[0].forward = 1; }).find("behind a link"), std::string::npos);
}

}  // namespace
}  // namespace snug
