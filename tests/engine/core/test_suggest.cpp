// Distances between words and the suggestions made from them.
#include <gtest/gtest.h>

#include "engine/core/suggest.h"

namespace snug {
namespace {

TEST(Suggest, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);       // the textbook pair
  EXPECT_EQ(edit_distance("max_setps", "max_steps"), 1);  // a swap is one edit
  EXPECT_EQ(edit_distance("ca", "abc"), 3);               // each letter is edited once at most
  EXPECT_EQ(edit_distance("Memory", "memory"), 0);
}

TEST(Suggest, TakesTheNearest) {
  EXPECT_EQ(closest("lerning_rate", {"weight_decay", "learning_rate", "max_steps"}),
            "learning_rate");
  EXPECT_EQ(closest("a", {"b", "ab"}), "b");  // the first of equals
  EXPECT_EQ(closest("xyzzy", {"memory", "seed"}), "");
  EXPECT_EQ(closest("", {"a"}), "");
  EXPECT_EQ(closest("4", {"0", "1", "auto"}), "");  // a number is no slip of another
  EXPECT_EQ(closest("O", {"0", "1", "auto"}), "0");
  EXPECT_EQ(closest(std::string(100, 'a'), {std::string_view("aaaa")}), "");
}

TEST(Suggest, Asks) {
  EXPECT_EQ(suggestion("sede", {"seed"}, "else"), "did you mean seed?");
  EXPECT_EQ(suggestion("qqqqqq", {"seed"}, "else"), "else");
}

}  // namespace
}  // namespace snug
