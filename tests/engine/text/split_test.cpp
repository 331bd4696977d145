#include <nlohmann/json.hpp>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe_model.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/unicode_table.h"
#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

using Strings = std::vector<std::string>;

class Collect : public PieceSink {
 public:
  void piece(std::string_view text) override { pieces.emplace_back(text); }
  Strings pieces;
};

Strings split(const PreTokenizer& p, std::string_view text) {
  RegexScratch scratch;
  Collect sink;
  p.split(text, scratch, sink);
  return sink.pieces;
}

PreTokenizer pattern(const char* regex, SplitBehavior behavior, bool invert = false) {
  PreTokenizer p;
  p.add_pattern(regex, behavior, invert, "test");
  return p;
}

// The hand-written splitters against their patterns, run by PCRE2. The pattern is put in a group,
// or it would be recognised and take the fast path itself.
class KnownSplit : public testing::TestWithParam<KnownPattern> {
 protected:
  void compare(const std::string& text) {
    Collect fast, slow;
    fast_.split(text, scratch_, fast);
    slow_.split(text, scratch_, slow);
    ASSERT_EQ(fast.pieces, slow.pieces) << text;
  }
  // Those that `take` takes, in texts of some thousand.
  template <class F>
  void compare_characters(F take) {
    std::string text;
    for (char32_t code = 1; code < 0x110000; ++code) {
      if ((code >= 0xD800 && code < 0xE000) || !take(code)) continue;
      append_utf8(text, code);
      text += code % 3 == 0 ? "A" : code % 3 == 1 ? " " : "1!";
      if (text.size() < 16384) continue;
      compare(text);
      text.clear();
    }
    compare(text);
  }
  void SetUp() override {
    const std::string pattern(pattern_of(GetParam()));
    ASSERT_EQ(known_pattern(pattern), GetParam());
    fast_.add_pattern(pattern, SplitBehavior::isolated, false, "test");
    slow_.add_pattern("(?:" + pattern + ")", SplitBehavior::isolated, false, "test");
  }
  PreTokenizer fast_, slow_;
  RegexScratch scratch_;
};

TEST_P(KnownSplit, EqualsItsPatternOnRandomText) {
  std::mt19937 rng(1);
  for (int i = 0; i < 4000; ++i) compare(random_text(rng, 1 + static_cast<int>(rng() % 60)));
  compare(slurp(golden("text_corpus.txt")));
}

// All short texts over one character of each class the patterns tell apart.
TEST_P(KnownSplit, EqualsItsPatternOnEveryShortText) {
  const std::vector<std::string> alphabet = {" ",  "\n", "\t", "\u00A0", "a",         "B", "\u01C5",
                                             "中", "ʰ",  "1",  "\u0301", "!",         "/", "'",
                                             "s",  "L",  "\r", "\u017F", "\U0001F600"};
  std::string text;
  const std::function<void(int)> extend = [&](int left) {
    if (!text.empty()) compare(text);
    for (size_t i = 0; left > 0 && i < alphabet.size(); ++i) {
      const size_t size = text.size();
      text += alphabet[i];
      extend(left - 1);
      text.resize(size);
    }
  };
  extend(4);
  for (const char* start : {"a'", "'", "中\u0301A", "x \n", " \r\n", "A\u0301"}) {
    text = start;
    extend(3);
  }
}

// Characters of every range of one kind, between such as show how they were classed; of long ranges
// (ideographs, what is not assigned, private use) both ends and some within.
TEST_P(KnownSplit, EqualsItsPatternOnCharactersOfEveryRange) {
  compare_characters([range = 0](char32_t code) mutable {
    while (range + 1 < kCharRangeCount && kCharRanges[range + 1] >> 8 <= code) ++range;
    const char32_t first = kCharRanges[range] >> 8,
                   end = range + 1 < kCharRangeCount ? kCharRanges[range + 1] >> 8 : 0x110000u;
    return code <= first + 2048 || code + 2048 >= end || code % 61 == 0;
  });
}

class SlowKnownSplit : public KnownSplit {};
TEST_P(SlowKnownSplit, EqualsItsPatternOnEveryCharacter) {
  compare_characters([](char32_t) { return true; });
}

std::string pattern_name(const testing::TestParamInfo<KnownPattern>& info) {
  const char* const names[] = {"none", "gpt2", "llama3", "qwen2", "qwen35", "o200k"};
  return names[static_cast<int>(info.param)];
}

const auto kKnownPatterns =
    testing::Values(KnownPattern::gpt2, KnownPattern::llama3, KnownPattern::qwen2,
                    KnownPattern::qwen35, KnownPattern::o200k);
INSTANTIATE_TEST_SUITE_P(Patterns, KnownSplit, kKnownPatterns, pattern_name);
INSTANTIATE_TEST_SUITE_P(Patterns, SlowKnownSplit, kKnownPatterns, pattern_name);

// Meanings as the documentation of Hugging Face `tokenizers` shows them for "the-final--countdown".
TEST(Split, Behaviors) {
  const char* text = "the-final--countdown";
  const auto run = [&](SplitBehavior b) { return split(pattern("-", b), text); };
  EXPECT_EQ(run(SplitBehavior::removed), (Strings{"the", "final", "countdown"}));
  EXPECT_EQ(run(SplitBehavior::isolated), (Strings{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(run(SplitBehavior::merged_with_previous),
            (Strings{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(run(SplitBehavior::merged_with_next), (Strings{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(run(SplitBehavior::contiguous), (Strings{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split(pattern("[a-z]+", SplitBehavior::removed, true), text),
            (Strings{"the", "final", "countdown"}));
  PreTokenizer literal;
  literal.add_literal("--", SplitBehavior::isolated, false);
  EXPECT_EQ(split(literal, text), (Strings{"the-final", "--", "countdown"}));
}

TEST(Split, StepsFollowEachOther) {
  PreTokenizer p;
  p.add_digits(true);
  p.add_prefix_space();
  p.add_gpt2();
  EXPECT_EQ(split(p, "ab12 c"), (Strings{" ab", " 1", " 2", " c"}));
  PreTokenizer together;
  together.add_digits(false);
  EXPECT_EQ(split(together, "ab12 c3"), (Strings{"ab", "12", " c", "3"}));
  EXPECT_NE(p.canonical(), together.canonical());
}

TEST(Split, EmptyMatchesEnd) {
  EXPECT_EQ(split(pattern("x*", SplitBehavior::isolated), "axé"), (Strings{"a", "x", "é"}));
  EXPECT_TRUE(split(pattern("x*", SplitBehavior::isolated), "").empty());
}

TEST(Split, ShorthandsMeanWhiteSpaceAndWords) {
  EXPECT_EQ(split(pattern("\\s", SplitBehavior::removed), "a\u180Eb\u3000c\u0085d"),
            (Strings{"a\u180Eb", "c", "d"}));
  EXPECT_EQ(split(pattern("[\\s]", SplitBehavior::removed), "a\u180Eb c"),
            (Strings{"a\u180Eb", "c"}));
  EXPECT_EQ(split(pattern("\\w+", SplitBehavior::isolated), "e\u0301²-_"),
            (Strings{"e\u0301²", "-", "_"}));
}

// What Oniguruma and PCRE2 read in different ways, and what the former has not at all.
TEST(Split, PatternsMatchAsInHuggingFace) {
  const auto truth = nlohmann::json::parse(slurp(golden("text_patterns.json")));
  ASSERT_GT(truth["matches"].size(), 100u);
  for (const auto& row : truth["matches"]) {
    const auto text = row[0].get<std::string>();
    SCOPED_TRACE(text);
    EXPECT_EQ(split(pattern(text.c_str(), SplitBehavior::removed, true), row[1].get<std::string>()),
              row[2].get<Strings>())
        << row[1];
  }
  ASSERT_GT(truth["none"].size(), 15u);
  for (const auto& row : truth["none"])
    expect_error([&] { Regex(row.get<std::string>(), "tok.json"); }, ErrorCode::unsupported,
                 "a split pattern that PCRE2 can run", row.get<std::string>(), "known patterns");
}

TEST(Split, PatternErrors) {
  const auto make = [](const char* text) {
    return [text] { Regex(text, "tok.json: pre_tokenizer"); };
  };
  const std::string wanted = "a split pattern that PCRE2 can run", advice = "known patterns";
  expect_error(make("a("), ErrorCode::unsupported, wanted, "at byte 2", advice);
  expect_error(make("[a&&b]"), ErrorCode::unsupported, wanted, "intersection", advice);
  expect_error(make("[a[b]]"), ErrorCode::unsupported, wanted, "class inside a class", advice);
  // Oniguruma has them, and PCRE2 means something else or has them not.
  for (const char* text : {"\\p{Emoji}", "\\p{In_Hiragana}", "[\\p{Cased}]", "\\P{^Age=6.0}"})
    expect_error(make(text), ErrorCode::unsupported, wanted,
                 "no general category, script or POSIX class: \\p{", advice);
  expect_error(make("[[:foo:]]"), ErrorCode::unsupported, wanted, "[:foo:] is no POSIX class",
               advice);
  for (const char* text : {"(?i:ss)", "(?i)\u00DF+", "(?i:s(?:s))", "(?ix: f i )", "(?i:[\\w'])",
                           "(?i:\\x{66}\\u0069)", "(?i)[\\p{Latin}]", "(?i:[^a][[:alpha:]])"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "one character can stand for several",
                 advice);
  for (const char* text : {"(?i)(a)\\1", "(?i)(?<n>a)\\k<n>"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "a back-reference in (?i)", advice);
  for (const char* text : {"(a)\\g1", "(a)\\g{1}", "(?<n>a)\\k{n}"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "without a name in < > or ' '",
                 advice);
  for (const char* text : {"\\x", "a\\xz", "[\\x]", "\\x{}", "\\x{g}", "\\o{}", "\\u61"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "without its digits", advice);
  expect_error(make("\\x{61 62}"), ErrorCode::unsupported, wanted, "without an end", advice);
  expect_error(make("[\\377]"), ErrorCode::unsupported, wanted, "a byte that is no", advice);
  expect_error(make("(a)\\12"), ErrorCode::unsupported, wanted, "several digits", advice);
  expect_error(make("\\c1"), ErrorCode::unsupported, wanted, "\\c without a letter", advice);
  expect_error(make("(?s:.)"), ErrorCode::unsupported, wanted, "(?s is not known", advice);
  expect_error(make("a{1,2}*+*"), ErrorCode::unsupported, wanted, "a quantifier of a quantifier",
               advice);
  expect_error(make("(?i:a[^\\p{Lu}])"), ErrorCode::unsupported, wanted, "\\p{Lu} in [...] of (?i)",
               advice);
  expect_error(make("(*FAIL)"), ErrorCode::unsupported, wanted, "(*..)", advice);
  // Lists of ranges in PCRE2's words, of which a '-' would make others.
  for (const char* text : {"[\\w-z]", "[[:blank:]-_]", "[\\s-\\u4e00]", "[a\\p{Lu}-\\w]"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "a range that begins with a set",
                 advice);
  for (const char* text : {"[+-\\h]", "[a-[:digit:]]", "[\u00E9-\\w]", "[a-z--\\P{L}]"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "a range that ends with a set",
                 advice);
  for (const char* text : {"(?:\\Z)+", "(?:a|(?:^|b)){2}"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "a quantifier of nothing", advice);
  for (const char* text : {"\\o{40000000101}", "\\x{110000}", "[\\x{FFFFFFFF}]"})
    expect_error(make(text), ErrorCode::unsupported, wanted, "a code above 10FFFF", advice);
  std::string nested;
  for (int i = 0; i < 300; ++i) nested += "(?:a(?i)";
  expect_error(make(nested.c_str()), ErrorCode::unsupported, wanted, "too many groups", advice);
  const std::string deep(70000, 'a');
  expect_error(make(deep.c_str()), ErrorCode::unsupported, wanted, "longer than 64 KiB", advice);
  const PreTokenizer endless = pattern("(a+)+(a+)+(a+)+$", SplitBehavior::isolated);
  expect_error([&] { split(endless, std::string(60, 'a') + "b"); }, ErrorCode::data,
               "within PCRE2's limits", "at byte 0", "simpler pattern");
  expect_error(
      [] {
        PreTokenizer p;
        for (int i = 0; i < 100; ++i) p.add_gpt2();
      },
      ErrorCode::unsupported, "at most 64 pre-tokenizer steps", "more", "fewer steps");
}

// The 200 bytes that are shown would end inside of a character.
TEST(Split, LongPatternsAreCutBetweenCharacters) {
  std::string shown = "(a+)+(a+)+(a+)+$|";  // and an odd number of bytes
  while (shown.size() < 198) shown += "\u00E9";
  const std::string rest = "\u00E9\u00E9";
  expect_error([&] { Regex(shown + rest + "(", "t"); }, ErrorCode::unsupported, "a split pattern",
               "t: \"" + shown + "\": ", "known patterns");
  const PreTokenizer endless = pattern((shown + rest).c_str(), SplitBehavior::isolated);
  expect_error([&] { split(endless, std::string(60, 'a') + "b"); }, ErrorCode::data,
               "within PCRE2's limits", "pattern \"" + shown + "\" at byte 0", "simpler pattern");
}

TEST(AddedTokens, LeftmostThenLongest) {
  AddedTokenMatcher m;
  m.add({.id = 1, .content = "<a>"});
  m.add({.id = 2, .content = "<a><b>"});
  m.add({.id = 3, .content = "b", .single_word = true});
  m.add({.id = 4, .content = "L", .lstrip = true, .rstrip = true});
  const auto run = [&](const char* text) {
    std::vector<AddedTokenMatcher::Part> parts;
    m.cut(text, parts);
    std::string out;
    for (const auto& p : parts) out += "[" + std::string(p.text) + ":" + std::to_string(p.id) + "]";
    return out;
  };
  EXPECT_EQ(run("x<a><b><a>y"), "[x:-1][<a><b>:2][<a>:1][y:-1]");
  EXPECT_EQ(run("<a><"), "[<a>:1][<:-1]");
  EXPECT_EQ(run("b ab b_ éb -b"), "[b:3][ ab b_ éb -:-1][b:3]");
  EXPECT_EQ(run("a \u3000L\n L x"), "[a:-1][ \u3000L\n :4][L :4][x:-1]");
  EXPECT_EQ(run(""), "");
  // A token in white space that the one before has taken: what is behind it is text, as tokenizers 0.23
  // has it.
  m.add({.id = 5, .content = "  "});
  EXPECT_EQ(run("L   y"), "[L   :4][:5][ y:-1]");
}

// Both ways of merging, on random merge tables and words.
TEST(BpeModel, ScanEqualsHeap) {
  std::mt19937 rng(3);
  for (int round = 0; round < 300; ++round) {
    std::array<int32_t, 256> bytes{};
    for (int b = 0; b < 256; ++b) bytes[static_cast<size_t>(b)] = b % 4;
    BpeModel model(bytes, std::nullopt, false);
    int32_t next = 4;
    for (uint32_t rank = 0; rank < 25; ++rank) {
      // Now and then two pairs make the same token, as real merge tables have it.
      const auto a = static_cast<int32_t>(rng() % static_cast<uint32_t>(next));
      const auto b = static_cast<int32_t>(rng() % static_cast<uint32_t>(next));
      model.add_merge(a, b, rank, rng() % 8 == 0 ? next - 1 : next++);
    }
    BpeModel::Scratch scratch;
    std::vector<int32_t> scan;
    for (uint32_t i = rng() % 40; i > 0; --i) scan.push_back(static_cast<int32_t>(rng() % 4));
    std::vector<int32_t> heap = scan;
    model.merge_by_scan(scan);
    model.merge_by_heap(heap, scratch);
    ASSERT_EQ(scan, heap);
  }
}

TEST(BpeModel, UnknownBytes) {
  std::array<int32_t, 256> bytes{};
  bytes.fill(-1);
  bytes['a'] = 5;
  BpeModel::Scratch s1, s2, s3;
  std::vector<int32_t> kept, fused, dropped;
  BpeModel(bytes, 9, false).encode_word("xxax", s1, kept);
  BpeModel(bytes, 9, true).encode_word("xxax", s2, fused);
  BpeModel(bytes, std::nullopt, false).encode_word("xxax", s3, dropped);
  EXPECT_EQ(kept, (std::vector<int32_t>{9, 9, 5, 9}));
  EXPECT_EQ(fused, (std::vector<int32_t>{9, 5, 9}));
  EXPECT_EQ(dropped, (std::vector<int32_t>{5}));
}

TEST(WordCache, ForgetsButNeverLies) {
  WordCache cache;
  std::vector<int32_t> out;
  const int words = static_cast<int>(WordCache::kMaxWords) + 1000;
  for (int i = 0; i < words; ++i) cache.insert("w" + std::to_string(i), {i, i + 1}, 0);
  int found = 0;
  for (int i = 0; i < words; ++i) {
    out.clear();
    if (!cache.find("w" + std::to_string(i), out)) continue;
    ++found;
    ASSERT_EQ(out, (std::vector<int32_t>{i, i + 1}));
  }
  EXPECT_EQ(found, 1000);
  EXPECT_FALSE(cache.find("other", out));
}

}  // namespace
}  // namespace snug
