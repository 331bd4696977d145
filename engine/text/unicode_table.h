// What Hugging Face `tokenizers` 0.23 knows of each character, as tests/golden/text_make_unicode.py
// found by asking it about every code point. The library mixes versions of Unicode: categories are
// those of Unicode 16.0.0, as are scripts, `numeric` follows 17.0.0, and the older crates it uses
// for punctuation, marks and normal forms stopped at Unicode 8 and 9. Ids are equal only if ours do
// the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace snug {

// General categories, in the order of the table.
// clang-format off
enum class Category : uint8_t {
  cn, lu, ll, lt, lm, lo, mn, mc, me, nd, nl, no, pc, pd, ps, pe, pi, pf, po, sm, sc, sk, so, zs,
  zl, zp, cc, cf, co, cs
};
// clang-format on
constexpr int kCategoryCount = 30;
// Two letters each ("Lu"), in the same order.
extern const char* const kCategoryNames[kCategoryCount];

// A kind is a category in the low five bits and these flags above.
constexpr uint16_t kNumeric = 1 << 5;      // Digits splits here
constexpr uint16_t kPunctuation = 1 << 6;  // Punctuation and BertPreTokenizer split here
constexpr uint16_t kMark = 1 << 7;         // StripAccents removes it
constexpr uint16_t kAccent = 1 << 8;       // BertNormalizer's strip_accents removes it
constexpr uint16_t kControl = 1 << 9;      // BertNormalizer's clean_text removes it
constexpr uint16_t kWord = 1 << 10;        // \w of Whitespace and of single_word tokens
constexpr uint16_t kFrozen = 1 << 11;      // normal forms leave it alone, newer Unicode or not
constexpr uint16_t kAlphabetic = 1 << 12;  // of split patterns, as are the next two
constexpr uint16_t kLowercase = 1 << 13;
constexpr uint16_t kUppercase = 1 << 14;

// The kind of a code point up to U+10FFFF.
uint16_t char_kind(char32_t code);

// Generated (unicode_table.cpp): the different kinds; ranges as first code point << 8 | index of
// the kind, ascending, each up to the next; lower case as code + delta for every step-th code.
extern const uint16_t kCharKinds[];
extern const int kCharKindCount;
extern const uint32_t kCharRanges[];
extern const int kCharRangeCount;
struct LowerRange {
  uint32_t first, last;
  int32_t step, delta;
};
extern const LowerRange kLowerRanges[];
extern const int kLowerRangeCount;

// Generated (unicode_scripts.cpp): names of scripts in lower case without '_', ascending; ranges as
// first code point << 8 | script, ascending, each up to the next.
struct ScriptName {
  std::string_view name;
  uint8_t script;
};
extern const ScriptName kScriptNames[];
extern const int kScriptNameCount;
extern const uint32_t kScriptRanges[];
extern const int kScriptRangeCount;

// The ranges spread out: two loads find the index of a code point's kind.
class CharIndex {
 public:
  static const CharIndex& get();
  uint8_t kind_index(char32_t code) const {
    return blocks_[static_cast<size_t>(block_of_[code >> 8]) << 8 | (code & 0xFF)];
  }

 private:
  CharIndex();
  uint16_t block_of_[0x1100] = {};
  uint8_t* blocks_ = nullptr;  // never freed: lives as long as the program
};

}  // namespace snug
