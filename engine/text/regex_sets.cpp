#include "engine/text/regex_sets.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/text/unicode.h"
#include "engine/text/unicode_table.h"

namespace snug {
namespace {

constexpr char32_t kCodes = 0x110000;

template <class... C>
constexpr uint32_t mask_of(C... categories) {
  return ((uint32_t{1} << static_cast<int>(categories)) | ...);
}

using enum Category;
constexpr uint32_t kL = mask_of(lu, ll, lt, lm, lo), kM = mask_of(mn, mc, me),
                   kN = mask_of(nd, nl, no), kP = mask_of(pc, pd, ps, pe, pi, pf, po),
                   kS = mask_of(sm, sc, sk, so), kZ = mask_of(zs, zl, zp),
                   kC = mask_of(cc, cf, cn, co, cs), kAll = kL | kM | kN | kP | kS | kZ | kC;

// A character has a property that has one of these.
struct Property {
  uint32_t categories = 0;
  uint16_t flags = 0;  // of its kind
  bool (*also)(char32_t) = nullptr;
  int script = -1;
};

bool is_any(char32_t) {
  return true;
}

bool is_tab(char32_t c) {
  return c == '\t';
}

bool is_ascii(char32_t c) {
  return c < 0x80;
}

bool is_hex_digit(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
}

// Letters in circles and squares, which are words and no letters.
bool is_enclosed_letter(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

constexpr std::pair<const char*, uint32_t> kMajorCategories[] = {
    {"L", kL}, {"M", kM}, {"N", kN}, {"P", kP}, {"S", kS}, {"Z", kZ}, {"C", kC}};

// Beside the two letters of a general category and the names of scripts.
constexpr std::pair<std::string_view, Property> kProperties[] = {
    {"lc", {mask_of(lu, ll, lt)}},
    {"letter", {kL}},
    {"casedletter", {mask_of(lu, ll, lt)}},
    {"uppercaseletter", {mask_of(lu)}},
    {"lowercaseletter", {mask_of(ll)}},
    {"titlecaseletter", {mask_of(lt)}},
    {"modifierletter", {mask_of(lm)}},
    {"otherletter", {mask_of(lo)}},
    {"mark", {kM}},
    {"combiningmark", {kM}},
    {"nonspacingmark", {mask_of(mn)}},
    {"spacingmark", {mask_of(mc)}},
    {"enclosingmark", {mask_of(me)}},
    {"number", {kN}},
    {"decimalnumber", {mask_of(nd)}},
    {"letternumber", {mask_of(nl)}},
    {"othernumber", {mask_of(no)}},
    {"punctuation", {kP}},
    {"connectorpunctuation", {mask_of(pc)}},
    {"dashpunctuation", {mask_of(pd)}},
    {"openpunctuation", {mask_of(ps)}},
    {"closepunctuation", {mask_of(pe)}},
    {"initialpunctuation", {mask_of(pi)}},
    {"finalpunctuation", {mask_of(pf)}},
    {"otherpunctuation", {mask_of(po)}},
    {"symbol", {kS}},
    {"mathsymbol", {mask_of(sm)}},
    {"currencysymbol", {mask_of(sc)}},
    {"modifiersymbol", {mask_of(sk)}},
    {"othersymbol", {mask_of(so)}},
    {"separator", {kZ}},
    {"spaceseparator", {mask_of(zs)}},
    {"lineseparator", {mask_of(zl)}},
    {"paragraphseparator", {mask_of(zp)}},
    {"other", {kC}},
    {"control", {mask_of(cc)}},
    {"format", {mask_of(cf)}},
    {"privateuse", {mask_of(co)}},
    {"surrogate", {mask_of(cs)}},
    {"unassigned", {mask_of(cn)}},
    {"any", {0, 0, is_any}},
    {"assigned", {kAll & ~mask_of(cn)}},
    {"alphabetic", {0, kAlphabetic}},
    {"lowercase", {0, kLowercase}},
    {"uppercase", {0, kUppercase}},
    {"whitespace", {0, 0, is_white_space}},
    {"alnum", {mask_of(nd), kAlphabetic}},
    {"alpha", {0, kAlphabetic}},
    {"ascii", {0, 0, is_ascii}},
    {"blank", {mask_of(zs), 0, is_tab}},
    {"cntrl", {mask_of(cc)}},
    {"digit", {mask_of(nd)}},
    {"graph", {kAll & ~kZ & ~mask_of(cc, cn, cs)}},
    {"lower", {0, kLowercase}},
    {"posixpunct", {kP | kS}},
    {"print", {kAll & ~mask_of(zl, zp, cc, cn, cs)}},
    {"punct", {kP}},
    {"space", {0, 0, is_white_space}},
    {"upper", {0, kUppercase}},
    {"word", {kL | kM | mask_of(nd, nl, pc), 0, is_enclosed_letter}},
    {"xdigit", {0, 0, is_hex_digit}},
};

char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

std::string loose_name(std::string_view name) {
  std::string loose;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_') loose += ascii_lower(c);
  return loose;
}

std::optional<Property> find_property(std::string_view loose) {
  for (const auto& [name, property] : kProperties)
    if (name == loose) return property;
  for (const auto& [letter, mask] : kMajorCategories)
    if (loose_name(letter) == loose) return Property{.categories = mask};
  for (uint32_t i = 0; i < kCategoryCount; ++i) {
    if (loose_name(kCategoryNames[i]) == loose) return Property{.categories = 1u << i};
  }
  for (int i = 0; i < kScriptNameCount; ++i) {
    if (kScriptNames[i].name == loose) return Property{.script = kScriptNames[i].script};
  }
  return std::nullopt;
}

// Sets what is of these categories or has one of these flags, a range of code points at a time.
void set_kinds(std::vector<bool>& in, uint32_t categories, uint16_t flags, bool value) {
  for (int i = 0; i < kCharRangeCount; ++i) {
    const uint16_t kind = kCharKinds[kCharRanges[i] & 0xFF];
    if ((categories >> (kind & 31) & 1) == 0 && (kind & flags) == 0) continue;
    const uint32_t end = i + 1 < kCharRangeCount ? kCharRanges[i + 1] >> 8 : uint32_t{kCodes};
    std::fill(in.begin() + (kCharRanges[i] >> 8), in.begin() + end, value);
  }
}

// One flag a code point.
std::vector<bool> members_of(const Property& property) {
  std::vector<bool> in(kCodes);
  set_kinds(in, property.categories, property.flags, true);
  for (char32_t code = 0; property.also && code < kCodes; ++code)
    if (property.also(code)) in[code] = true;
  for (int i = 0; i < kScriptRangeCount; ++i) {
    const uint32_t end = i + 1 < kScriptRangeCount ? kScriptRanges[i + 1] >> 8 : uint32_t{kCodes};
    if (static_cast<int>(kScriptRanges[i] & 0xFF) == property.script)
      std::fill(in.begin() + (kScriptRanges[i] >> 8), in.begin() + end, true);
  }
  return in;
}

std::string range_text(char32_t first, char32_t last) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, first == last ? "\\x{%X}" : "\\x{%X}-\\x{%X}",
                static_cast<unsigned>(first), static_cast<unsigned>(last));
  return buffer;
}

bool is_surrogate(char32_t code) {
  return code >= 0xD800 && code < 0xE000;
}

// Surrogates, which no text holds, are left out.
std::string ranges_of(const std::vector<bool>& set) {
  std::string out;
  for (char32_t code = 0; code < kCodes; ++code) {
    const char32_t first = code;
    while (code < kCodes && !is_surrogate(code) && set[code]) ++code;
    if (code > first) out += range_text(first, code - 1);
  }
  return out;
}

// Calls found(code) for the members of a class, brackets included, that `text` holds.
template <class F>
void for_each_member(const std::string& set, uint32_t options, std::string_view text, F&& found) {
  const std::string pattern = set + "+";
  int error = 0;
  size_t offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | options, &error, &offset, nullptr),
      &pcre2_code_free);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  if (!code || !match) return;  // the pattern as a whole will be refused
  if (text.size() > 0x10000) pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  size_t position = 0;
  while (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                     PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0) {
    const size_t* offsets = pcre2_get_ovector_pointer(match.get());
    for (position = offsets[0]; position < offsets[1];) {
      const Utf8Char c = decode_utf8(text, position);
      found(c.code);
      position += c.length;
    }
  }
}

using Memo = std::map<std::string, std::string>;

// PCRE2's own category plus the characters it lacks, or a list of ranges where it has too many.
const std::string& category_members(Memo& memo, const std::string& name, uint32_t mask) {
  if (const auto it = memo.find(name); it != memo.end()) return it->second;
  std::string all;
  for (char32_t c = 0; c < kCodes; ++c)
    if (!is_surrogate(c)) append_utf8(all, c);
  std::vector<bool> lacking = members_of({.categories = mask});
  bool too_many = false;
  for_each_member("[\\p{" + name + "}]", 0, all, [&](char32_t code) {
    too_many = too_many || !lacking[code];
    lacking[code] = false;
  });
  std::string text = too_many ? ranges_of(members_of({.categories = mask}))
                              : "\\p{" + name + "}" + ranges_of(lacking);
  return memo.emplace(name, std::move(text)).first->second;
}

// The categories that `property` holds whole, those of one letter before their parts, and ranges
// for the rest of it.
std::string shortest_members(Memo& memo, const Property& property) {
  std::string text;
  Property rest = property;
  const auto take = [&](const std::string& name, uint32_t mask) {
    if (mask & ~rest.categories) return;
    text += category_members(memo, name, mask);
    rest.categories &= ~mask;
  };
  for (const auto& [letter, mask] : kMajorCategories) take(letter, mask);
  for (uint32_t i = 0; i < kCategoryCount; ++i) take(kCategoryNames[i], 1u << i);
  std::vector<bool> in = members_of(rest);
  set_kinds(in, property.categories, 0, false);
  return text + ranges_of(in);
}

// What (?i) takes for several characters: in UTF-8, and what they stand for.
struct LongFolds {
  std::string characters;
  std::vector<std::u32string> folded;
};

const LongFolds& long_folds() {
  static const LongFolds folds = [] {
    LongFolds found;
    const auto look = [&](char32_t first, char32_t last) {
      for (char32_t code = first; code <= last; ++code) {
        const std::u32string folded = fold_case(code);
        if (folded.size() < 2) continue;
        append_utf8(found.characters, code);
        found.folded.push_back(folded);
      }
    };
    look(0x80, 0x1FFF);
    look(0xFB00, 0xFB1F);  // Latin and Armenian ligatures
    return found;
  }();
  return folds;
}

}  // namespace

const std::string* property_members(std::string_view name, bool negated, SetPlace place) {
  static std::mutex mutex;
  static Memo memo;  // by the name in lower case, or as PCRE2 has it for categories
  const std::string loose = loose_name(name);
  const std::optional<Property> property = find_property(loose);
  if (!property) return nullptr;
  const std::lock_guard lock(mutex);
  // PCRE2 has no class inside a class: a complement is a list of ranges.
  const bool ranges = negated || place == SetPlace::in_folding_class;
  const bool latin = loose == "word" && place == SetPlace::alone;
  const std::string key = loose + (negated ? "^" : "") + (ranges ? "-" : "") + (latin ? "+" : "");
  if (const auto it = memo.find(key); it != memo.end()) return &it->second;
  std::string text;
  if (ranges) {
    std::vector<bool> in = members_of(*property);
    if (negated) in.flip();
    text = ranges_of(in);
  } else {
    text = shortest_members(memo, *property);
  }
  // Word characters for Oniguruma, but not in [...].
  if (latin) text += "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
  if (text.empty()) text = "\\p{Cs}";  // surrogates, which no text holds
  return &memo.emplace(key, std::move(text)).first->second;
}

bool is_of_one_case(std::string_view name) {
  const std::optional<Property> property = find_property(loose_name(name));
  if (!property) return false;
  const uint32_t cased = mask_of(lu, ll, lt), held = property->categories & cased;
  return (held != 0 && held != cased) || (property->flags & (kLowercase | kUppercase)) != 0;
}

std::string_view posix_property(std::string_view name) {
  for (const std::string_view known :
       {"alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "space",
        "upper", "word", "xdigit"})
    if (name == known) return known;
  return name == "punct" ? "posixpunct" : "";  // \p{Punct} has no symbols
}

bool has_long_fold(const std::string& set) {
  bool any = false;
  for_each_member(set, PCRE2_CASELESS, long_folds().characters, [&](char32_t) { any = true; });
  return any;
}

bool ends_with_long_fold(std::u32string_view folded) {
  for (const std::u32string& known : long_folds().folded)
    if (folded.ends_with(known)) return true;
  return false;
}

}  // namespace snug
