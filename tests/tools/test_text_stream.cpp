#include <gtest/gtest.h>

#include <random>

#include "engine/text/unicode.h"
#include "tools/infer/text_stream.h"

namespace snug {
namespace {

// What is shown after each piece; the last is what the end adds.
std::vector<std::string> shown(const std::vector<std::string>& stops,
                               const std::vector<std::string>& pieces) {
  TextStream stream(stops);
  std::vector<std::string> out;
  for (const std::string& piece : pieces) out.push_back(stream.add(piece));
  out.push_back(stream.rest());
  return out;
}

using Shown = std::vector<std::string>;

TEST(TextStream, ShowsWholeCharacters) {
  EXPECT_EQ(shown({}, {"a", "b"}), (Shown{"a", "b", ""}));
  EXPECT_EQ(shown({}, {"\xED\x95", "\x9C!"}), (Shown{"", "\xED\x95\x9C!", ""}));
  EXPECT_EQ(shown({}, {"x\xF0\x9F", "\x98", "\x80y"}), (Shown{"x", "", "\xF0\x9F\x98\x80y", ""}));
  // What cannot become a character, at once and at the end.
  EXPECT_EQ(shown({}, {"a\xFF"
                       "b"}),
            (Shown{"a\xEF\xBF\xBD"
                   "b",
                   ""}));
  EXPECT_EQ(shown({}, {"a\xED\x95", "b"}), (Shown{"a",
                                                  "\xEF\xBF\xBD"
                                                  "b",
                                                  ""}));
  EXPECT_EQ(shown({}, {"a\xED\x95"}), (Shown{"a", "\xEF\xBF\xBD"}));
}

TEST(TextStream, HoldsWhatMayBecomeAStopString) {
  EXPECT_EQ(shown({"END"}, {"a", "E", "N", "x"}), (Shown{"a", "", "", "ENx", ""}));
  EXPECT_EQ(shown({"END"}, {"aEN", "ED", "b"}), (Shown{"a", "ENED", "b", ""}));
  EXPECT_EQ(shown({"END"}, {"aEN", "D and more", "never"}), (Shown{"a", "", "", ""}));
  EXPECT_EQ(shown({"END"}, {"aEN"}), (Shown{"a", "EN"})) << "the text ends";
  EXPECT_EQ(shown({"aab"}, {"a", "a", "a", "b"}), (Shown{"", "", "a", "", ""}));
  EXPECT_EQ(shown({"\n\n"}, {"x\n", "y\n", "\nz"}), (Shown{"x", "\ny", "", ""}));
  // A stop string inside a character's bytes begins at the character.
  EXPECT_EQ(shown({"\xED\x95\x9C"}, {"a\xED", "\x95",
                                     "\x9C"
                                     "b"}),
            (Shown{"a", "", "", ""}));
  EXPECT_EQ(shown({"\xED\x95\x9C"}, {"a\xED", "\x95", "\x9D"}),
            (Shown{"a", "", "\xED\x95\x9D", ""}));
}

TEST(TextStream, TheStopStringThatIsCompleteFirstCounts) {
  EXPECT_EQ(shown({"abc", "b"}, {"xabc"}), (Shown{"xa", ""}));
  EXPECT_EQ(shown({"b", "abc"}, {"x", "a", "b", "c"}), (Shown{"x", "", "a", "", ""}));
  EXPECT_EQ(shown({"c", "abc"}, {"xabc"}), (Shown{"x", ""})) << "of two that end there the longest";
  TextStream stream({"."});
  EXPECT_FALSE(stream.stopped());
  EXPECT_EQ(stream.add("a. b."), "a");
  EXPECT_TRUE(stream.stopped());
}

// However the bytes are cut, the text is the same: that before the first stop string.
TEST(TextStream, TokensDoNotMatter) {
  std::mt19937 random(4);
  const std::vector<std::string> letters = {"a",  "b",   "ab", "\xC3\xA9", "\xED\x95\x9C",
                                            "\n", "\xFF"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = 0; i < 12; ++i) text += letters[random() % letters.size()];
    std::vector<std::string> stops;
    for (size_t i = random() % 3; i > 0; --i) {
      std::string stop;
      for (size_t n = 1 + random() % 3; n > 0; --n) stop += letters[random() % 6];
      stops.push_back(stop);
    }
    const std::string expected = sanitize_utf8(text.substr(0, find_stop(text, stops)));
    TextStream stream(stops);
    std::string got;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 4;
      const std::string piece = stream.add(text.substr(at, n));
      EXPECT_TRUE(is_valid_utf8(piece));
      got += piece;
      // Nothing is shown that the end of the text would not have.
      EXPECT_TRUE(expected.starts_with(got)) << round;
      at += n;
    }
    got += stream.rest();
    EXPECT_EQ(got, expected) << round;
  }
}

}  // namespace
}  // namespace snug
