// The packer against independent truth: a checker that compares all pairs, and the true optimum of
// tiny instances by trying every order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "engine/core/error.h"
#include "engine/memory/packer.h"
#include "engine/memory/packer_parts.h"

namespace snug {
namespace {

using Intervals = std::vector<Interval>;

bool alive_together(const Interval& a, const Interval& b) {
  return std::max(a.born, b.born) < std::min(a.died, b.died);
}

// Every pair, by definition. Returns what is wrong, or nothing.
std::string all_pairs_fault(const Intervals& x, const std::vector<int64_t>& offsets,
                            int64_t alignment, int64_t height) {
  if (x.size() != offsets.size()) return "wrong number of offsets";
  for (size_t i = 0; i < x.size(); ++i) {
    if (offsets[i] < 0 || offsets[i] % alignment) return "misaligned " + std::to_string(i);
    if (offsets[i] + x[i].bytes > height) return "above the height " + std::to_string(i);
    for (size_t j = 0; j < i; ++j)
      if (x[i].bytes && x[j].bytes && alive_together(x[i], x[j]) &&
          offsets[i] < offsets[j] + x[j].bytes && offsets[j] < offsets[i] + x[i].bytes)
        return "overlap " + std::to_string(j) + " " + std::to_string(i);
  }
  return "";
}

int64_t rounded(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// The largest sum of live rounded bytes, asked at every birth.
int64_t live_peak(const Intervals& x, int64_t alignment) {
  int64_t peak = 0;
  for (const Interval& at : x) {
    int64_t live = 0;
    for (const Interval& i : x)
      if (i.born <= at.born && at.born < i.died) live += rounded(i.bytes, alignment);
    peak = std::max(peak, live);
  }
  return peak;
}

// Some order of lowest placements gives the optimum: order an optimal layout by offset, and every
// tensor can only sink.
int64_t optimum(const Intervals& x) {
  const int n = static_cast<int>(x.size());
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  int64_t best = std::numeric_limits<int64_t>::max();
  do {
    std::vector<int64_t> offset(n);
    int64_t height = 0;
    for (int k = 0; k < n && height < best; ++k) {
      const int i = order[k];
      bool moved = true;
      offset[i] = 0;
      while (moved) {
        moved = false;
        for (int p = 0; p < k; ++p) {
          const int j = order[p];
          if (alive_together(x[i], x[j]) && offset[i] < offset[j] + x[j].bytes &&
              offset[j] < offset[i] + x[i].bytes) {
            offset[i] = offset[j] + x[j].bytes;
            moved = true;
          }
        }
      }
      height = std::max(height, offset[i] + x[i].bytes);
    }
    best = std::min(best, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

Intervals random_intervals(std::mt19937_64& random, int n, int span, int max_life, int max_bytes) {
  Intervals x(n);
  for (Interval& i : x) {
    i.born = static_cast<int64_t>(random() % span);
    i.died = i.born + 1 + static_cast<int64_t>(random() % max_life);
    i.bytes = 1 + static_cast<int64_t>(random() % max_bytes);
  }
  return x;
}

// No moment has slack: what is born exactly fills what died. Greedy orders miss here most often.
Intervals full_intervals(std::mt19937_64& random, size_t n, int64_t capacity) {
  Intervals x;
  std::vector<size_t> live;
  int64_t room = capacity, now = 0;
  while (x.size() < n) {
    for (; room > 0 && x.size() < n; room -= x.back().bytes) {
      live.push_back(x.size());
      x.push_back({now, -1, 1 + static_cast<int64_t>(random() % room)});
    }
    ++now;
    std::erase_if(live, [&](size_t i) {
      if (random() % 2) return false;
      x[i].died = now;
      room += x[i].bytes;
      return true;
    });
  }
  for (Interval& i : x)
    if (i.died < 0) i.died = now + 1;
  return x;
}

std::string message_of(const std::function<void()>& act, ErrorCode code = ErrorCode::internal) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(Packer, NothingToPlace) {
  const Packing none = pack({});
  EXPECT_EQ(none.height, 0);
  EXPECT_EQ(none.lower_bound, 0);
  EXPECT_EQ(none.proof, PackProof::lower_bound);
  EXPECT_TRUE(none.offsets.empty());
  EXPECT_TRUE(none.witness.empty());
  EXPECT_TRUE(pack_random({}, 256, 1).empty());
  EXPECT_NO_THROW(check_packing({}, {}, 256));
}

TEST(Packer, EmptyTensorsTakeNoRoom) {
  const Intervals x = {{0, 4, 0}, {1, 3, 300}, {2, 2, 999}, {0, 2, 0}};
  const Packing packed = pack(x);
  EXPECT_EQ(packed.height, 512);
  EXPECT_EQ(packed.offsets, (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(packed.witness, (std::vector<int32_t>{1}));
  EXPECT_NO_THROW(check_packing(x, packed.offsets, 256));
}

TEST(Packer, TouchingLivesShareTheirPlace) {
  const Intervals x = {{-5, 2, 100}, {2, 9, 100}, {9, 10, 100}};
  const Packing packed = pack(x, {.alignment = 1});
  EXPECT_EQ(packed.height, 100);
  EXPECT_EQ(packed.proof, PackProof::lower_bound);
}

TEST(Packer, WitnessProvesTheBound) {
  const Intervals x = {{0, 10, 256}, {1, 4, 512}, {3, 6, 256}, {5, 9, 1024}, {7, 8, 1}};
  const Packing packed = pack(x);
  EXPECT_EQ(packed.lower_bound, 256 + 256 + 1024);
  EXPECT_EQ(packed.witness, (std::vector<int32_t>{0, 2, 3}));
  EXPECT_EQ(packed.peak_time, 5);
  EXPECT_EQ(packed.height, packed.lower_bound);
}

TEST(Packer, RandomInstancesAreValidAndRepeatable) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 120; ++round) {
    const int n = 1 + static_cast<int>(random() % 120);
    const int span = 1 + static_cast<int>(random() % 80);
    Intervals x = random_intervals(random, n, span, 1 + static_cast<int>(random() % span), 5000);
    for (Interval& i : x)
      if (random() % 16 == 0) i.bytes = 0;
    const int64_t alignment = std::vector<int64_t>{1, 256, 4096, 96}[random() % 4];
    const PackOptions options{.alignment = alignment, .seconds = 0.01};
    const Packing packed = pack(x, options);
    ASSERT_EQ(all_pairs_fault(x, packed.offsets, alignment, packed.height), "") << round;
    ASSERT_NO_THROW(check_packing(x, packed.offsets, alignment));
    ASSERT_EQ(packed.lower_bound, live_peak(x, alignment));
    ASSERT_GE(packed.height, packed.lower_bound);
    ASSERT_EQ(packed.height == packed.lower_bound, packed.proof == PackProof::lower_bound);
    ASSERT_NE(std::string(packed.method), "");
    int64_t live = 0;
    for (const int32_t i : packed.witness) {
      ASSERT_TRUE(x[i].born <= packed.peak_time && packed.peak_time < x[i].died);
      live += rounded(x[i].bytes, alignment);
    }
    ASSERT_EQ(live, packed.lower_bound);
    const Packing again = pack(x, options);
    ASSERT_EQ(packed.offsets, again.offsets);
    ASSERT_EQ(packed.proof, again.proof);
  }
}

TEST(Packer, TinyInstancesAreOptimal) {
  std::mt19937_64 random(2);
  int missed_by_greedy = 0;
  for (int round = 0; round < 600; ++round) {
    const int n = round < 200 ? 1 + static_cast<int>(random() % 7) : 7;
    const Intervals x = round < 400
                            ? random_intervals(random, n, 6, 5, 4)
                            : full_intervals(random, n, 4 + static_cast<int64_t>(random() % 4));
    const Packing packed = pack(x, {.alignment = 1});
    ASSERT_NE(packed.proof, PackProof::none) << round;
    ASSERT_EQ(packed.height, optimum(x)) << round;
    ASSERT_EQ(all_pairs_fault(x, packed.offsets, 1, packed.height), "");
    missed_by_greedy += pack(x, {.alignment = 1, .seconds = 0}).height > packed.height;
  }
  EXPECT_GT(missed_by_greedy, 0);
}

// Every greedy order ends at 7 or more; 6 is possible.
TEST(Packer, SearchFindsWhatGreedyOrdersMiss) {
  const Intervals x = {{4, 6, 2}, {2, 4, 4}, {5, 8, 4}, {3, 5, 2}, {1, 2, 3}};
  const Packing greedy = pack(x, {.alignment = 1, .seconds = 0});
  EXPECT_GT(greedy.height, greedy.lower_bound);
  EXPECT_EQ(greedy.proof, PackProof::none);
  const Packing packed = pack(x, {.alignment = 1});
  EXPECT_EQ(packed.height, 6);
  EXPECT_EQ(packed.proof, PackProof::lower_bound);
  EXPECT_EQ(optimum(x), 6);
  EXPECT_EQ(all_pairs_fault(x, packed.offsets, 1, 6), "");
}

// One tensor in a time of its own, which the reduction places, is higher than all that is searched.
TEST(Packer, TheHeightIsThatOfAllTensors) {
  const Intervals missed = {{5, 7, 4}, {0, 3, 5}, {7, 8, 3}, {1, 8, 6},
                            {4, 6, 5}, {3, 7, 2}, {1, 4, 4}, {2, 5, 2}};
  const Packing greedy = pack(missed, {.alignment = 1, .seconds = 0});
  const Packing found = pack(missed, {.alignment = 1});
  ASSERT_LT(found.height, greedy.height);
  Intervals x = missed;
  x.push_back({11, 12, greedy.height - 1});
  const Packing packed = pack(x, {.alignment = 1});
  EXPECT_EQ(packed.height, greedy.height - 1);
  EXPECT_EQ(packed.lower_bound, greedy.height - 1);
  EXPECT_EQ(packed.proof, PackProof::lower_bound);
  EXPECT_EQ(all_pairs_fault(x, packed.offsets, 1, packed.height), "");
}

// No layout meets the bound here: the proof must come from the search.
TEST(Packer, ProvesThatTheBoundIsOutOfReach) {
  const Intervals instances[] = {
      {{0, 2, 2}, {0, 1, 3}, {1, 4, 2}, {1, 3, 1}, {2, 3, 1}, {2, 4, 1}, {3, 5, 2}, {4, 6, 3}},
      {{0, 4, 1}, {0, 2, 5}, {2, 5, 2}, {2, 3, 3}, {3, 4, 1}, {3, 6, 2}, {4, 5, 2}, {5, 6, 4}}};
  for (Intervals x : instances) {
    const int64_t best = optimum(x);
    // A tensor below it and a second group after it must not disturb the proof.
    x.push_back({0, 7, 10});
    x.push_back({7, 9, 5});
    x.push_back({8, 10, 5});
    const Packing packed = pack(x, {.alignment = 1});
    EXPECT_EQ(packed.height, best + 10);
    EXPECT_LT(packed.lower_bound, packed.height);
    EXPECT_EQ(packed.proof, PackProof::exhausted);
    EXPECT_EQ(all_pairs_fault(x, packed.offsets, 1, packed.height), "");
  }
}

// The exact search alone, from a layout that stacks everything, so that neither greedy orders nor
// the local search can hide a fault in it.
TEST(Packer, ExactSearchFindsTheOptimum) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    const Intervals x = random_intervals(random, 7, 7, 6, 6);
    std::vector<packing::Item> items;
    packing::Layout best{{}, 0, ""};
    for (const Interval& i : x) {
      items.push_back({static_cast<int32_t>(i.born), static_cast<int32_t>(i.died), i.bytes});
      best.offsets.push_back(best.height);
      best.height += i.bytes;
    }
    int64_t steps = 10'000'000;
    ASSERT_TRUE(packing::pack_exact(items, live_peak(x, 1), best, steps));
    ASSERT_EQ(best.height, optimum(x)) << round;
    ASSERT_EQ(all_pairs_fault(x, best.offsets, 1, best.height), "");
  }
}

TEST(Packer, LocalSearchImprovesAnOrder) {
  const Intervals x = {{4, 6, 2}, {2, 4, 4}, {5, 8, 4}, {3, 5, 2}, {1, 2, 3}};
  std::vector<packing::Item> items;
  for (const Interval& i : x)
    items.push_back({static_cast<int32_t>(i.born), static_cast<int32_t>(i.died), i.bytes});
  std::vector<int32_t> order = {4, 3, 0, 1, 2};
  packing::Layout best;
  int64_t steps = 100'000;
  packing::pack_local(items, 6, best, order, packing::Fit::lowest, steps);
  EXPECT_EQ(best.height, 6);
  EXPECT_EQ(all_pairs_fault(x, best.offsets, 1, best.height), "");
  EXPECT_GT(steps, 0);
}

// Many items are found by an index: the layouts, the steps and the failures are those of looking
// through all of them.
TEST(Packer, AnIndexChangesNothing) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 60; ++round) {
    const Intervals x = random_intervals(random, 120, 40, 9, 30);
    std::vector<packing::Item> items;
    for (const Interval& i : x)
      if (i.born < i.died && i.bytes > 0)
        items.push_back({static_cast<int32_t>(i.born), static_cast<int32_t>(i.died), i.bytes});
    std::vector<int32_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    packing::Placer plain(items, items.size() + 1), indexed(items, items.size());
    for (const packing::Fit fit : {packing::Fit::lowest, packing::Fit::tightest}) {
      int64_t height = packing::kNoLayout - 1, a = 0, b = 0;
      ASSERT_TRUE(plain.place(order, fit, height, a));
      ASSERT_TRUE(indexed.place(order, fit, height, b));
      ASSERT_EQ(plain.offsets(), indexed.offsets()) << round;
      ASSERT_EQ(plain.height(), indexed.height());
      ASSERT_EQ(a, b);
      height = plain.height();
      packing::Placer again(items, items.size() + 1), again_indexed(items, items.size());
      const size_t kept = order.size() / 3;
      ASSERT_TRUE(again.place(order, fit, height, a, plain, kept));
      ASSERT_TRUE(again_indexed.place(order, fit, height, b, indexed, kept));
      ASSERT_EQ(again.offsets(), again_indexed.offsets());
      ASSERT_EQ(a, b);
      ASSERT_FALSE(plain.place(order, fit, height - 1, a));
      ASSERT_FALSE(indexed.place(order, fit, height - 1, b));
      ASSERT_EQ(a, b);
    }
    std::vector<packing::Fit> fits(order.size());
    for (packing::Fit& fit : fits) fit = static_cast<packing::Fit>(random() % 3);
    packing::Random one(5), other(5);
    plain.place(order, fits, one);
    indexed.place(order, fits, other);
    ASSERT_EQ(plain.offsets(), indexed.offsets());
    ASSERT_EQ(one.next(), other.next());
  }
}

// A rectangle cut into pieces: the cuts are a layout of known, lowest height.
TEST(Packer, RebuildsACutRectangle) {
  std::mt19937_64 random(7);
  int missed_by_greedy = 0;
  for (int round = 0; round < 20; ++round) {
    const int64_t height = 1000;
    Intervals x = {{0, 60, height}};
    while (x.size() < 40) {
      const size_t i = random() % x.size();
      Interval& piece = x[i];
      Interval rest = piece;
      if (random() % 2 && piece.bytes > 1) {
        piece.bytes = 1 + static_cast<int64_t>(random() % (piece.bytes - 1));
        rest.bytes -= piece.bytes;
      } else if (piece.died - piece.born > 1) {
        piece.died =
            piece.born + 1 + static_cast<int64_t>(random() % (piece.died - piece.born - 1));
        rest.born = piece.died;
      } else {
        continue;
      }
      x.push_back(rest);
    }
    const Packing packed = pack(x, {.alignment = 1});
    EXPECT_EQ(packed.height, height) << round;
    EXPECT_EQ(packed.proof, PackProof::lower_bound) << round;
    EXPECT_EQ(all_pairs_fault(x, packed.offsets, 1, height), "");
    missed_by_greedy += pack(x, {.alignment = 1, .seconds = 0}).height > height;
  }
  EXPECT_GT(missed_by_greedy, 0);
}

TEST(Packer, StepsUsedUpMeansNoProof) {
  std::mt19937_64 random(4);
  const Intervals x = random_intervals(random, 200, 60, 30, 1000);
  const Packing greedy = pack(x, {.alignment = 1, .seconds = 0});
  ASSERT_GT(greedy.height, greedy.lower_bound);
  EXPECT_EQ(greedy.proof, PackProof::none);
  const Packing brief = pack(x, {.alignment = 1, .seconds = 1e-6});
  EXPECT_EQ(brief.proof, PackProof::none);
  EXPECT_LE(brief.height, greedy.height);
  EXPECT_EQ(all_pairs_fault(x, brief.offsets, 1, brief.height), "");
}

TEST(Packer, RefusesBrokenIntervals) {
  const auto refused = [](Intervals x, PackOptions options = {}) {
    return message_of([&] { pack(x, options); });
  };
  EXPECT_NE(refused({{0, 1, 8}, {5, 4, 8}}).find("interval 1: born 5, died 4, bytes 8"),
            std::string::npos);
  EXPECT_NE(refused({{0, 1, -8}}).find("interval 0: born 0, died 1, bytes -8"), std::string::npos);
  EXPECT_NE(refused({{0, 1, 8}}, {.alignment = 0}).find("alignment of at least 1"),
            std::string::npos);
  EXPECT_NE(refused({{0, 1, 8}}, {.seconds = std::nan("")}).find("seconds of at least 0"),
            std::string::npos);
  EXPECT_NE(refused({{0, 1, 8}}, {.seconds = -1.0}).find("seconds of at least 0"),
            std::string::npos);
}

// A model that no machine holds is a budget that is infeasible.
TEST(Packer, RefusesWhatNoMemoryHolds) {
  const auto refused = [](Intervals x, PackOptions options = {}) {
    return message_of([&] { pack(x, options); }, ErrorCode::out_of_memory);
  };
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_NE(refused({{0, 1, huge}}).find("less than 2^62 bytes in all"), std::string::npos);
  EXPECT_NE(refused({{0, 1, huge / 4}, {0, 1, huge / 4}, {0, 1, huge / 4}})
                .find("tensor 2 of 2305843009213693951 bytes"),
            std::string::npos);
  EXPECT_NE(refused({{0, 1, 1}}, {.alignment = huge}).find("less than 2^62 bytes"),
            std::string::npos);
}

TEST(Packer, ProofsHaveNames) {
  EXPECT_STREQ(to_string(PackProof::lower_bound), "lower_bound");
  EXPECT_STREQ(to_string(PackProof::exhausted), "exhausted");
  EXPECT_STREQ(to_string(PackProof::none), "none");
}

TEST(PackRandom, ValidAndDifferent) {
  std::mt19937_64 random(5);
  const Intervals x = random_intervals(random, 60, 40, 20, 4000);
  std::set<std::vector<int64_t>> layouts;
  std::vector<std::set<int64_t>> places(x.size());
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto offsets = pack_random(x, 256, seed);
    ASSERT_EQ(all_pairs_fault(x, offsets, 256, std::numeric_limits<int64_t>::max()), "") << seed;
    ASSERT_NO_THROW(check_packing(x, offsets, 256));
    ASSERT_EQ(offsets, pack_random(x, 256, seed));
    layouts.insert(offsets);
    for (size_t i = 0; i < x.size(); ++i) places[i].insert(offsets[i]);
  }
  EXPECT_EQ(layouts.size(), 100u);
  for (const auto& seen : places) EXPECT_GT(seen.size(), 10u);
}

TEST(CheckPacking, CatchesEveryInjectedFault) {
  std::mt19937_64 random(6);
  int overlaps = 0;
  for (int round = 0; round < 300; ++round) {
    const Intervals x = random_intervals(random, 30, 20, 10, 2000);
    std::vector<int64_t> offsets = pack_random(x, 256, round);
    const size_t victim = random() % x.size();
    offsets[victim] = static_cast<int64_t>(random() % 40) * 256;
    const bool bad = !all_pairs_fault(x, offsets, 256, std::numeric_limits<int64_t>::max()).empty();
    overlaps += bad;
    const std::string message = message_of([&] { check_packing(x, offsets, 256); });
    ASSERT_EQ(message != "no error", bad) << message;
    if (!bad) continue;
    ASSERT_NE(message.find("tensor " + std::to_string(victim) + ","), std::string::npos) << message;
  }
  EXPECT_GT(overlaps, 100);
}

TEST(CheckPacking, NamesBothTensors) {
  const Intervals x = {{0, 4, 256}, {2, 6, 512}, {4, 9, 256}};
  EXPECT_NO_THROW(check_packing(x, std::vector<int64_t>{0, 256, 0}, 256));
  const std::string overlap = message_of([&] {
    check_packing(x, std::vector<int64_t>{512, 256, 0}, 256);
  });
  EXPECT_NE(overlap.find("tensor 0, bytes [512, 768), alive [0, 4) and "
                         "tensor 1, bytes [256, 768), alive [2, 6)"),
            std::string::npos)
      << overlap;
  // A life that is one moment longer than planned.
  Intervals longer = x;
  longer[0].died = 5;
  EXPECT_NE(message_of([&] {
              check_packing(longer, std::vector<int64_t>{0, 256, 0}, 256);
            }).find("tensor 0, bytes [0, 256), alive [0, 5) and tensor 2"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              check_packing(x, std::vector<int64_t>{0, 300, 0}, 256);
            }).find("tensor 1 at offset 300"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              check_packing(x, std::vector<int64_t>{0, 256, -256}, 256);
            }).find("tensor 2 at offset -256"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              check_packing(x, std::vector<int64_t>{0, 256}, 256);
            }).find("3 offsets, one per tensor\n  found: 2 offsets"),
            std::string::npos);
}

}  // namespace
}  // namespace snug
