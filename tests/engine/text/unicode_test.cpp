#include "engine/text/unicode.h"

#include <nlohmann/json.hpp>

#include "engine/text/byte_alphabet.h"
#include "engine/text/unicode_table.h"
#include "tests/engine/text/helpers.h"

namespace snug {
namespace {

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return out;
}

TEST(Unicode, SanitizeEqualsPython) {
  const auto cases = nlohmann::json::parse(slurp(golden("text_golden.json")))["sanitised"];
  ASSERT_GT(cases.size(), 45u);
  for (const auto& c : cases) {
    const std::string hex = c[0], wanted = c[1];
    EXPECT_EQ(sanitize_utf8(from_hex(hex)), wanted) << hex;
    EXPECT_EQ(is_valid_utf8(from_hex(hex)), from_hex(hex) == wanted) << hex;
  }
}

TEST(Unicode, EveryCharacterSurvives) {
  for (char32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 61) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append_utf8(text, code);
    const Utf8Char c = decode_utf8(text, 0);
    ASSERT_TRUE(c.valid) << static_cast<uint32_t>(code);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.length, text.size());
    ASSERT_EQ(sanitize_utf8(text), text);
    // All but the last byte of it: held back; all of it: shown.
    const std::string prefix = "ab" + text;
    ASSERT_EQ(utf8_complete_prefix(prefix), prefix.size());
    if (text.size() > 1) {
      ASSERT_EQ(utf8_complete_prefix(prefix.substr(0, prefix.size() - 1)), 2u);
    }
  }
}

TEST(Unicode, CompletePrefixNeverStalls) {
  EXPECT_EQ(utf8_complete_prefix(""), 0u);
  EXPECT_EQ(utf8_complete_prefix("abc"), 3u);
  EXPECT_EQ(utf8_complete_prefix("a\xF0\x9F\x98"), 1u);
  EXPECT_EQ(utf8_complete_prefix("\xF0\x9F"), 0u);
  EXPECT_EQ(utf8_complete_prefix("a\xFF"), 2u);              // can never become valid
  EXPECT_EQ(utf8_complete_prefix("a\x80\x80\x80\x80"), 5u);  // continuation bytes alone
  EXPECT_EQ(utf8_complete_prefix("\xED\xA0"), 2u);           // a surrogate
  EXPECT_EQ(utf8_complete_prefix("\xF0\x80\x80"), 3u);       // overlong
}

void expect_class(const std::u32string& characters, CharClass wanted) {
  for (const char32_t c : characters) {
    EXPECT_EQ(char_class(c), wanted) << static_cast<uint32_t>(c);
  }
}

TEST(Unicode, ClassesOfKnownCharacters) {
  expect_class(U"aZé中한あБא", CharClass::letter);
  expect_class(U"09½²Ⅷ٣", CharClass::number);
  expect_class(U"\t\n\v\f\r \u0085\u00A0\u1680\u2000\u200A\u2028\u2029\u202F\u205F\u3000",
               CharClass::space);
  // No White_Space although they look or were like it: U+180E, U+200B, U+FEFF, U+001C.
  expect_class(U"\u180E\u200B\uFEFF\x1C.!_\u0301😀", CharClass::other);
  EXPECT_TRUE(is_word_char(U'_'));
  EXPECT_TRUE(is_word_char(U'\u0301'));
  EXPECT_TRUE(is_word_char(0x200D));
  EXPECT_FALSE(is_word_char(U'½'));
  EXPECT_FALSE(is_word_char(U'-'));
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(normalize_utf8("e\u0301 \u1100\u1161", NormalForm::nfc), "\u00e9 \uac00");
  EXPECT_EQ(normalize_utf8("\u00e9 \uac00", NormalForm::nfd), "e\u0301 \u1100\u1161");
  EXPECT_EQ(normalize_utf8("\uFB01 \u2460", NormalForm::nfkc), "fi 1");
  EXPECT_EQ(normalize_utf8("\u212B", NormalForm::nfkd), "A\u030A");
  EXPECT_EQ(normalize_utf8(std::string("a\0b", 3) + "\u00e9", NormalForm::nfc),
            std::string("a\0b", 3) + "\u00e9");
}

// Characters on which versions of Unicode disagree, and what `tokenizers` 0.23 makes of them.
TEST(Unicode, VersionsOfHuggingFace) {
  expect_class(U"\u1C89\uA7CB\U00016D40", CharClass::letter);  // new in Unicode 16
  expect_class(U"\U00010D40", CharClass::number);
  expect_class(U"\U00016EA0\U00011DE0", CharClass::other);  // new in 17
  EXPECT_TRUE(char_kind(0x11DE0) & kNumeric);               // Digits knows 17
  EXPECT_TRUE(char_kind(0xBE) & kNumeric);
  EXPECT_TRUE(char_kind(0x166D) & kPunctuation);   // a symbol since 12
  EXPECT_FALSE(char_kind(0x2E5D) & kPunctuation);  // new in 14
  EXPECT_TRUE(char_kind('$') & kPunctuation);
  EXPECT_EQ(normalize_utf8("\u32FF", NormalForm::nfkc), "\u32FF");  // new in 12.1
  EXPECT_EQ(normalize_utf8("\u32FE", NormalForm::nfkc), "\u30F2");
  // U+1AC1 (class 220, new in 14) is not moved and lets nothing pass.
  EXPECT_EQ(normalize_utf8("a\u0301\u1AC3\u0323", NormalForm::nfd), "a\u0301\u1AC3\u0323");
  EXPECT_EQ(lower_char(0x16EA0), 0x16EBBu);
  EXPECT_EQ(lower_char(U'É'), U'é');
  EXPECT_EQ(lower_char(U'Ā'), U'ā');
  EXPECT_EQ(lower_char(U'ā'), U'ā');
  EXPECT_EQ(lower_char(0x130), 0x130u);
}

TEST(Unicode, KindsAreThoseOfTheTable) {
  int64_t wrong = 0;
  int range = 0;
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (range + 1 < kCharRangeCount && kCharRanges[range + 1] >> 8 == code) ++range;
    wrong += char_kind(code) != kCharKinds[kCharRanges[range] & 0xFF];
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(range + 1, kCharRangeCount);
}

TEST(Unicode, LongRunsOfMarksTakeLinearTime) {
  std::string text = "a", sorted = "a", above;
  for (int i = 0; i < 250000; ++i) {
    text += "\u0301\u0323";  // classes 230 and 220
    sorted += "\u0323";
    above += "\u0301";
  }
  EXPECT_TRUE(normalize_utf8(text, NormalForm::nfd) == sorted + above);
}

TEST(ByteAlphabet, KnownCharactersAndBack) {
  EXPECT_EQ(bytes_to_alphabet(" the\n"), "\u0120the\u010A");
  EXPECT_EQ(byte_to_char(0x00), 0x100u);
  EXPECT_EQ(byte_to_char(0x7F), 0x121u);
  EXPECT_EQ(byte_to_char(0xAD), 0x143u);
  EXPECT_EQ(byte_to_char(0xFF), 0xFFu);
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  EXPECT_EQ(alphabet_to_bytes(bytes_to_alphabet(all)), all);
  EXPECT_FALSE(alphabet_to_bytes("a b").has_value());  // a space stands for nothing
  EXPECT_FALSE(alphabet_to_bytes("\u4e2d").has_value());
  EXPECT_FALSE(alphabet_to_bytes("\xFF").has_value());
}

TEST(Unicode, TextForATerminal) {
  EXPECT_EQ(printable_utf8("plain é 한 \u00a0\n\tx", LineBreaks::kept), "plain é 한 \u00a0\n\tx");
  EXPECT_EQ(printable_utf8("a\n\tb\x1b[2J\x7f\r", LineBreaks::kept), "a\n\tb\\x1b[2J\\x7f\\x0d");
  EXPECT_EQ(printable_utf8("a\n\tb", LineBreaks::shown), "a\\x0a\\x09b");
  EXPECT_EQ(printable_utf8("\u0080\u009b2J\u009f", LineBreaks::shown), "\\u0080\\u009b2J\\u009f");
  EXPECT_EQ(printable_utf8("x\xff\xc2", LineBreaks::kept), "x\uFFFD\uFFFD");
}

}  // namespace
}  // namespace snug
