// Hard instances from print with an optimum that is known: rectangles cut into squares that are all
// different. Time runs along one side, so every square is a tensor that lives as long as it is
// large; at every moment the arena is full to the last byte, so the height of the rectangle is the
// lower bound and only a layout without any gap reaches it.
//
// Bouwkamp codes, which name the squares from the top, row by row, each laid into the leftmost of
// the highest places. The codes are checked here: squares that did not fill the rectangle would
// fail the test.
//   33x32, 69x61     Z. Moroń, "O rozkładach prostokątów na kwadraty" (1925), order 9
//   57x55 .. 130x79  order 10, in R. L. Brooks, C. A. B. Smith, A. H. Stone, W. T. Tutte, "The
//                    dissection of rectangles into squares" (1940)
//   175x175          T. H. Willcocks (1948), order 24
//   110x110 (two), 112x112   A. J. W. Duijvestijn, "Simple perfect squared square of lowest order"
//                    (1978), order 21, and his list of order 22
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/memory/packer.h"
#include "engine/memory/packer_parts.h"

namespace snug {
namespace {

using Intervals = std::vector<Interval>;

struct Squared {
  const char* name;
  int64_t width, height;
  std::vector<int64_t> squares;
};
void PrintTo(const Squared& s, std::ostream* out) {
  *out << s.name;
}

const Squared kPublished[] = {{"33x32", 33, 32, {18, 15, 7, 8, 14, 4, 10, 1, 9}},
                              {"69x61", 69, 61, {36, 33, 5, 28, 25, 9, 2, 7, 16}},
                              {"57x55", 57, 55, {30, 27, 3, 11, 13, 25, 8, 17, 2, 15}},
                              {"65x47", 65, 47, {25, 17, 23, 11, 6, 5, 24, 22, 3, 19}},
                              {"105x104", 105, 104, {60, 45, 19, 26, 44, 16, 12, 7, 33, 28}},
                              {"111x98", 111, 98, {57, 54, 3, 7, 44, 41, 15, 4, 11, 26}},
                              {"115x94", 115, 94, {60, 55, 16, 39, 34, 15, 11, 4, 23, 19}},
                              {"130x79", 130, 79, {45, 44, 41, 3, 38, 12, 35, 34, 11, 23}},
                              {"112x112", 112, 112, {50, 35, 27, 8, 19, 15, 17, 11, 6,  24, 29,
                                                     25, 9,  2,  7, 18, 16, 42, 4,  37, 33}},
                              {"110x110_23", 110, 110, {60, 50, 23, 27, 24, 22, 14, 7, 16, 8, 6, 12,
                                                        15, 13, 2,  28, 26, 4,  21, 3, 18, 17}},
                              {"110x110_27", 110, 110, {60, 50, 27, 23, 24, 22, 14, 4, 19, 8, 6, 3,
                                                        12, 16, 9,  2,  28, 26, 21, 1, 18, 17}},
                              {"175x175", 175, 175, {81, 56, 38, 18, 20, 55, 16, 3, 1,  5, 14, 4, 9,
                                                     39, 51, 30, 29, 31, 64, 43, 8, 35, 2, 33}}};

// Time along the width; `sideways`: along the height. Empty: the code is none of this rectangle.
Intervals intervals(const Squared& r, bool sideways) {
  std::vector<int64_t> filled(static_cast<size_t>(r.width), 0);
  Intervals list;
  for (const int64_t side : r.squares) {
    const auto lowest = std::min_element(filled.begin(), filled.end());
    const int64_t x = lowest - filled.begin(), y = *lowest;
    for (int64_t i = x; i < x + side; ++i) {
      if (i >= r.width || filled[static_cast<size_t>(i)] != y) return {};
      filled[static_cast<size_t>(i)] += side;
    }
    list.push_back(sideways ? Interval{y, y + side, side} : Interval{x, x + side, side});
  }
  for (const int64_t height : filled)
    if (height != r.height) return {};
  return list;
}

class PublishedPacking : public testing::TestWithParam<Squared> {};

TEST_P(PublishedPacking, TheSearchFindsTheOptimum) {
  for (const bool sideways : {false, true}) {
    SCOPED_TRACE(sideways ? "time along the height" : "time along the width");
    const Intervals x = intervals(GetParam(), sideways);
    const int64_t best = sideways ? GetParam().width : GetParam().height;
    ASSERT_EQ(x.size(), GetParam().squares.size()) << "the squares do not fill the rectangle";
    const Packing greedy = pack(x, {.alignment = 1, .seconds = 0});
    const Packing packed = pack(x, {.alignment = 1, .seconds = 1});
    EXPECT_NO_THROW(check_packing(x, packed.offsets, 1));
    EXPECT_EQ(packed.lower_bound, best);
    EXPECT_LE(packed.height, greedy.height);
    EXPECT_EQ(packed.height, best);
    EXPECT_EQ(packed.proof, PackProof::lower_bound);
  }
}

// The exact search alone, from a layout that stacks everything.
TEST_P(PublishedPacking, TheExactSearchAloneFindsIt) {
  for (const bool sideways : {false, true}) {
    const Intervals x = intervals(GetParam(), sideways);
    const int64_t best = sideways ? GetParam().width : GetParam().height;
    std::vector<packing::Item> items;
    packing::Layout layout{{}, 0, ""};
    for (const Interval& i : x) {
      items.push_back({static_cast<int32_t>(i.born), static_cast<int32_t>(i.died), i.bytes});
      layout.offsets.push_back(layout.height);
      layout.height += i.bytes;
    }
    int64_t steps = 400'000'000;
    ASSERT_TRUE(packing::pack_exact(items, best, layout, steps));
    EXPECT_EQ(layout.height, best);
    EXPECT_NO_THROW(check_packing(x, layout.offsets, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Squares, PublishedPacking, testing::ValuesIn(kPublished),
                         [](const auto& s) { return std::string(s.param.name); });

TEST(PublishedPackings, AreHardForGreedyOrders) {
  int missed = 0;
  for (const Squared& s : kPublished)
    for (const bool sideways : {false, true}) {
      const Intervals x = intervals(s, sideways);
      const Packing greedy = pack(x, {.alignment = 1, .seconds = 0});
      missed += greedy.height > greedy.lower_bound;
    }
  EXPECT_GT(missed, 12) << "of 24";
}

// Several at once: one after the other in time, and one above the other, where the parts of one may
// lie between those of the other.
TEST(PublishedPackings, TogetherTheyAreNoWorseThanTheBestOrder) {
  const auto find = [](const char* name, bool sideways) {
    for (const Squared& s : kPublished)
      if (std::string(s.name) == name) return intervals(s, sideways);
    return Intervals();
  };
  Intervals row = find("112x112", false);
  for (Interval i : find("110x110_23", true)) row.push_back({i.born + 112, i.died + 112, i.bytes});
  for (Interval i : find("33x32", false)) row.push_back({i.born + 222, i.died + 222, i.bytes});
  const Packing after = pack(row, {.alignment = 1, .seconds = 2});
  EXPECT_EQ(after.height, 112);
  EXPECT_EQ(after.proof, PackProof::lower_bound);

  Intervals pile = find("110x110_23", false);
  for (const Interval& i : find("110x110_27", false)) pile.push_back(i);
  const Packing greedy = pack(pile, {.alignment = 1, .seconds = 0});
  const Packing packed = pack(pile, {.alignment = 1, .seconds = 0.5});
  EXPECT_NO_THROW(check_packing(pile, packed.offsets, 1));
  EXPECT_GE(packed.height, 220);
  EXPECT_LE(packed.height, greedy.height);
  EXPECT_EQ(packed.proof == PackProof::none, packed.height > 220);
}

TEST(PublishedPackings, ACodeWithAnErrorIsSeen) {
  Squared wrong = kPublished[0];
  std::swap(wrong.squares[2], wrong.squares[4]);
  EXPECT_TRUE(intervals(wrong, false).empty());
}

}  // namespace
}  // namespace snug
