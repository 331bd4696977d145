#include "engine/text/regex_syntax.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/text/unicode.h"
#include "engine/text/unicode_table.h"

namespace snug {
namespace {

// The members of a class, without the brackets.
constexpr const char* kSpaceSet =
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
// Words are these with the categories L, M, Nd, Nl and Pc; and, but not in [...], as Oniguruma has
// it, kWordLatin.
constexpr const char* kWordRest =
    "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";
constexpr const char* kWordLatin = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

// Of what PCRE2 is given, where one \w may be kilobytes of ranges.
constexpr size_t kMaxTranslated = 4 << 20;
constexpr size_t kMostGroups = 200;  // one in the other; PCRE2 has 250

// The PCRE2 of a system may know another version of Unicode than unicode_table.h. A category is
// written as PCRE2's own plus the characters it lacks, or as a list of ranges where it has too
// many.
struct CategorySet {
  std::string members;     // of a class, without the brackets
  std::string complement;  // the same for all other characters
};

std::string range_text(char32_t first, char32_t last) {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, first == last ? "\\x{%X}" : "\\x{%X}-\\x{%X}",
                static_cast<unsigned>(first), static_cast<unsigned>(last));
  return buffer;
}

// Ranges of code points for which `test` holds; surrogates, which no text holds, are left out.
template <class F>
std::string ranges_where(F&& test) {
  std::string out;
  int64_t first = -1;
  for (int64_t code = 0; code <= 0x110000; ++code) {
    const bool in =
        code < 0x110000 && !(code >= 0xD800 && code < 0xE000) && test(static_cast<char32_t>(code));
    if (in && first < 0) first = code;
    if (!in && first >= 0) {
      out += range_text(static_cast<char32_t>(first), static_cast<char32_t>(code - 1));
      first = -1;
    }
  }
  return out;
}

// The characters that PCRE2 takes for members of a set, as one flag a code point.
std::vector<bool> pcre2_members(const std::string& set) {
  std::vector<bool> in(0x110000);
  const std::string pattern = set + "+";
  int error = 0;
  size_t offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr),
      &pcre2_code_free);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), &pcre2_match_data_free);
  require(code && match, "PCRE2 without \\p");
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  std::string text;
  for (char32_t first = 0; first < 0x110000; first += 0x800) {
    if (first == 0xD800) continue;  // surrogates
    text.clear();
    for (char32_t c = first; c < first + 0x800; ++c) append_utf8(text, c);
    size_t position = 0;
    while (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                       PCRE2_NO_UTF_CHECK, match.get(), nullptr) > 0) {
      const size_t* offsets = pcre2_get_ovector_pointer(match.get());
      for (position = offsets[0]; position < offsets[1];) {
        const Utf8Char c = decode_utf8(text, position);
        in[c.code] = true;
        position += c.length;
      }
    }
  }
  return in;
}

const CategorySet& category_set(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, CategorySet> known;
  const std::lock_guard lock(mutex);
  const auto it = known.find(name);
  if (it != known.end()) return it->second;
  const auto ours = [&](char32_t code) {
    const char* const category = kCategoryNames[char_kind(code) & 31];
    return category[0] == name[0] && (name.size() == 1 || category[1] == name[1]);
  };
  const std::vector<bool> theirs = pcre2_members("\\p{" + name + "}");
  bool too_many = false;
  const std::string lacking = ranges_where([&](char32_t code) {
    too_many = too_many || (theirs[code] && !ours(code));
    return ours(code) && !theirs[code];
  });
  CategorySet set;
  set.members = too_many ? ranges_where(ours) : "\\p{" + name + "}" + lacking;
  set.complement = too_many || !lacking.empty() ? ranges_where([&](char32_t c) { return !ours(c); })
                                                : "\\P{" + name + "}";
  return known.emplace(name, std::move(set)).first->second;
}

// The category that the {...} at `at`, behind \p, names, and where it ends; empty for scripts and
// other properties, which stay PCRE2's.
std::string category_at(std::string_view pattern, size_t at, size_t& end, bool& negated) {
  const size_t close = pattern.find('}', at);
  if (close == std::string_view::npos) return {};
  std::string name(pattern.substr(at + 1, close - at - 1));
  end = close + 1;
  if (!name.empty() && name[0] == '^') {
    negated = !negated;
    name.erase(0, 1);
  }
  for (const char* known : kCategoryNames) {
    if (name == known || (name.size() == 1 && name[0] == known[0])) return name;
  }
  return {};
}

// What a name of [[:name:]] or a shorthand stands for inside of [...]; empty members: not known
// here, or not exactly.
const CategorySet& class_set(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, CategorySet> known;
  const std::lock_guard lock(mutex);
  const auto it = known.find(name);
  if (it != known.end()) return it->second;
  CategorySet set;
  const auto add = [&](std::initializer_list<const char*> categories, const char* rest) {
    for (const char* category : categories) set.members += category_set(category).members;
    set.members += rest;
  };
  if (name == "word") add({"L", "M", "Nd", "Nl", "Pc"}, kWordRest);
  if (name == "space") add({}, kSpaceSet);
  if (name == "punct") add({"P", "S"}, "");
  if (name == "digit") add({"Nd"}, "");
  if (name == "cntrl") add({"Cc"}, "");
  if (name == "blank") add({"Zs"}, "\\x{09}");
  if (name == "xdigit") add({}, "0-9A-Fa-f");
  if (name == "ascii") add({}, "\\x{00}-\\x{7F}");
  if (set.members.empty()) {
    static const CategorySet none;
    return none;
  }
  // PCRE2 has no class inside a class: a complement is a list of ranges.
  const std::vector<bool> in = pcre2_members("[" + set.members + "]");
  set.complement = ranges_where([&](char32_t code) { return !in[code]; });
  return known.emplace(name, std::move(set)).first->second;
}

// {Xan}, {L&}, {sc=Han} and their kind, behind \p.
bool only_of_pcre2(std::string_view text) {
  const std::string_view name = text.substr(1, text.find('}') - 1);
  for (const char* known : {"Xan", "Xps", "Xsp", "Xuc", "Xwd"})
    if (name == known) return true;
  return name.find_first_of("&=:") != std::string_view::npos;
}

std::string word_class(bool negated) {
  return (negated ? "[^" : "[") + class_set("word").members + kWordLatin + "]";
}

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Translation {
 public:
  Translation(std::string_view pattern, std::string_view where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    groups_.push_back({0});  // the pattern itself
    while (at_ < pattern_.size()) {
      if (out_.size() > kMaxTranslated) stop("too many character classes");
      if (in_class_) {
        class_part();
      } else {
        part();
      }
    }
    out_.append(groups_.back().isolated, ')');
    return std::move(out_);
  }

 private:
  struct Group {
    size_t begin;         // in out_
    bool folds = false;   // around it: (?i) holds
    size_t isolated = 0;  // options such as (?i) in it, which hold to its end
    bool looks = false;   // ahead or behind
  };
  enum class Last { nothing, item, quantifier, interval };  // what stands before at_

  [[noreturn]] void stop(const std::string& why) const { refuse_pattern(pattern_, where_, why); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void begin_item() {
    item_ = out_.size();
    last_ = Last::item;
  }
  void copy(size_t bytes) {
    bytes = std::min(bytes, pattern_.size() - at_);
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }
  // Up to and with the next `end`, or, without one, the rest.
  void copy_through(char end) {
    const size_t close = pattern_.find(end, at_);
    copy(close == std::string_view::npos ? pattern_.size() : close + 1 - at_);
  }
  // A set of characters, inside or outside of [...].
  void emit(const std::string& members) { out_ += in_class_ ? members : "[" + members + "]"; }

  void part();
  void class_part();
  void escape();
  bool property(bool negated);
  void group();
  void options();
  bool interval(std::string* text, bool* fixed) const;
  void quantifier();

  std::string_view pattern_, where_;
  std::string out_;
  size_t at_ = 0;           // in pattern_
  size_t item_ = 0;         // where in out_ the item begins that a quantifier would repeat
  size_t class_begin_ = 0;  // in pattern_, behind [ or [^
  Last last_ = Last::nothing;
  bool in_class_ = false, extended_ = false, folds_ = false;
  size_t isolated_ = 0;  // of all groups
  std::vector<Group> groups_;
};

// One item outside of [...], or what stands between two.
void Translation::part() {
  const char c = peek();
  if (c == '\\') {
    begin_item();
    if (std::string_view("bBAzZGK").find(peek(1)) != std::string_view::npos) last_ = Last::nothing;
    escape();
  } else if (c == '(') {
    group();
  } else if (c == ')') {
    last_ = groups_.back().looks ? Last::nothing : Last::item;
    if (groups_.size() > 1) {
      out_.append(groups_.back().isolated, ')');
      item_ = groups_.back().begin;
      folds_ = groups_.back().folds;
      groups_.pop_back();
    }
    copy(1);
  } else if (c == '[') {
    begin_item();
    in_class_ = true;
    copy(peek(1) == '^' ? 2 : 1);
    class_begin_ = at_;
  } else if (c == '|' || c == '^' || c == '$') {
    last_ = Last::nothing;
    copy(1);
  } else if (c == '*' || c == '+' || c == '?' || c == '{') {
    quantifier();
  } else {
    if (c == '#' && extended_) stop("a comment of (?x) may hold anything");
    // A character of several bytes is one item.
    if ((static_cast<unsigned char>(c) & 0xC0u) != 0x80u) begin_item();
    copy(1);
  }
}

void Translation::class_part() {
  const char c = peek();
  if (c == '\\') {
    escape();
  } else if (c == ']' && at_ == class_begin_) {
    out_ += "\\]";
    ++at_;
  } else if (c == ']') {
    in_class_ = false;
    copy(1);
  } else if (next_is("&&")) {
    stop("class intersection && is not known to PCRE2");
  } else if (c == '[') {
    const size_t close = pattern_.find(":]", at_);
    if (peek(1) != ':' || close == std::string_view::npos)
      stop("a class inside a class is not known to PCRE2");
    const bool negated = peek(2) == '^';
    const size_t begin = at_ + (negated ? 3 : 2);
    const std::string name(pattern_.substr(begin, std::max(close, begin) - begin));
    const CategorySet& set = class_set(name);
    if (set.members.empty()) stop("[:" + name + ":] has another meaning in PCRE2");
    emit(negated ? set.complement : set.members);
    at_ = close + 2;
  } else {
    copy(1);
  }
}

// \p{..} or \P{..}, at the name, where it is a general category.
bool Translation::property(bool negated) {
  size_t end = at_;
  const std::string name = category_at(pattern_, at_, end, negated);
  if (name.empty()) return false;
  if (in_class_ && folds_ && (name == "Lu" || name == "Ll" || name == "Lt"))
    stop("\\p{" + name + "} in [...] of (?i) has another meaning in PCRE2");
  const CategorySet& set = category_set(name);
  // Alone it is what it is, whatever the case; PCRE2 would add the other case.
  if (folds_ && !in_class_) out_ += "(?-i:";
  emit(negated ? set.complement : set.members);
  if (folds_ && !in_class_) out_ += ")";
  at_ = end;
  return true;
}

// From the backslash on, inside or outside of [...].
void Translation::escape() {
  if (at_ + 1 >= pattern_.size()) return copy(1);  // PCRE2 refuses it
  const char next = peek(1);
  const size_t before = at_;
  at_ += 2;
  switch (next) {
    case 'h':
    case 'H':
      stop("\\h has another meaning in PCRE2");
    case 's':
      return emit(class_set("space").members);
    case 'S':
      out_ += in_class_ ? class_set("space").complement : "[^" + class_set("space").members + "]";
      return;
    case 'w':
      out_ += in_class_ ? class_set("word").members : word_class(false);
      return;
    case 'W':
      out_ += in_class_ ? class_set("word").complement : word_class(true);
      return;
    case 'd':
      return emit(category_set("Nd").members);
    case 'D':
      return emit(category_set("Nd").complement);
    case 'v':
      out_ += "\\x{0B}";
      return;
    case 'V':
    case 'Q':
    case 'E':
      out_ += next;  // the letters: PCRE2 has more shorthands than Oniguruma
      return;
    case 'b':
    case 'B':
      if (!in_class_) {
        const std::string in = word_class(false), behind = "(?<=" + in + ")",
                          not_behind = "(?<!" + in + ")", ahead = "(?=" + in + ")",
                          not_ahead = "(?!" + in + ")";
        out_ += next == 'b' ? "(?:" + behind + not_ahead + "|" + not_behind + ahead + ")"
                            : "(?:" + behind + ahead + "|" + not_behind + not_ahead + ")";
        return;
      }
      break;
    case 'p':
    case 'P':
      if (peek() != '{') {
        out_ += next;
        return;
      }
      if (property(next == 'P')) return;
      if (only_of_pcre2(pattern_.substr(at_))) stop("a property that PCRE2 alone has");
      break;
    case 'x':
      if (peek() >= '8' && peek() != '{' && std::isxdigit(static_cast<unsigned char>(peek(1))) != 0)
        stop("\\x of a byte that is no character");
      break;
    case 'N':
      if (!in_class_ && next_is("{U+")) stop("\\N{U+ has another meaning in PCRE2");
      break;
    default:
      break;
  }
  // As it stands, with what belongs to it: a quantifier repeats it whole.
  at_ = before;
  copy(2);
  if ((next == 'x' || next == 'o' || next == 'p' || next == 'P' || next == 'k' || next == 'g') &&
      peek() == '{') {
    copy_through('}');
  } else if (next == 'x') {
    for (int i = 0; i < 2 && std::isxdigit(static_cast<unsigned char>(peek())) != 0; ++i) copy(1);
  } else if (next == 'c') {
    copy(1);
  } else if ((next == 'k' || next == 'g') && peek() == '<') {
    copy_through('>');
  } else if ((next == 'k' || next == 'g') && peek() == '\'') {
    copy(1);
    copy_through('\'');
  } else if (is_octal(next)) {
    for (int i = 0; i < 2 && is_octal(peek()); ++i) copy(1);
  }
}

// ( and what says which kind of group it opens.
void Translation::group() {
  if (peek(1) == '*') stop("(*..) has another meaning in PCRE2");
  if (next_is("(?#")) {
    // Gone: nothing may stand between an item and its quantifier.
    for (at_ += 3; at_ < pattern_.size() && peek() != ')'; ++at_)
      if (peek() == '\\') ++at_;
    if (at_ >= pattern_.size()) stop("a comment without an end");
    ++at_;
    return;
  }
  if (groups_.size() > kMostGroups) stop("too many groups in each other");
  size_t bytes = 1;  // a group that captures
  if (peek(1) == '?') {
    bytes = 0;
    for (const char* known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"})
      if (next_is(known)) bytes = std::string_view(known).size();
    const char third = peek(2), quote = third == '<' ? '>' : third;
    if (bytes == 0 && (third == '<' || third == '\'')) {
      const size_t close = pattern_.find(quote, at_ + 3);
      if (close == std::string_view::npos) stop("a name without an end");
      bytes = close + 1 - at_;
    }
    if (bytes == 0) return options();
  }
  const std::string_view opens = pattern_.substr(at_, bytes);
  groups_.push_back({.begin = out_.size(),
                     .folds = folds_,
                     .looks = opens.ends_with('=') || opens.ends_with('!')});
  last_ = Last::nothing;
  copy(bytes);
}

// (?imx-imx:..), and (?imx-imx), which in Ruby's syntax holds as a group up to the end of the one
// it stands in, alternatives behind it included.
void Translation::options() {
  std::string text = "(?";
  bool off = false, folds = folds_;
  for (at_ += 2; peek() != ':' && peek() != ')'; ++at_) {
    const char c = peek();
    if (c != 'i' && c != 'm' && c != 'x' && (c != '-' || off))
      stop(std::string("(?") + (c == '\0' ? ' ' : c) + " is not known, or has another meaning");
    off = off || c == '-';
    if (c == 'i') folds = !off;
    extended_ = extended_ || (c == 'x' && !off);
    text += c == 'm' ? 's' : c;  // Ruby's m: the dot takes line breaks
  }
  if (peek() == ':') {
    groups_.push_back({.begin = out_.size(), .folds = folds_});
  } else {
    if (++isolated_ > kMostGroups) stop("too many groups in each other");
    ++groups_.back().isolated;
  }
  ++at_;
  folds_ = folds;
  out_ += text + ":";
  last_ = Last::nothing;
}

// Whether {n}, {n,}, {,m} or {n,m} stands at at_, and how PCRE2 writes it. Anything else in braces
// is text.
bool Translation::interval(std::string* text, bool* fixed) const {
  size_t i = 1;
  const auto number = [&] {
    std::string digits;
    for (; is_digit(peek(i)); ++i) digits += peek(i);
    return digits;
  };
  const std::string low = number();
  *fixed = peek(i) != ',';
  if (!*fixed) ++i;
  const std::string high = *fixed ? "" : number();
  if (peek(i) != '}' || (low.empty() && high.empty())) return false;
  *text = "{" + (low.empty() ? "0" : low) + (*fixed ? "" : ",") + high + "}";
  return true;
}

// * + ? and intervals, with the ? or + behind. In Ruby's syntax a + behind an interval, and a ?
// behind {n}, do not change how it is taken but repeat it once more.
void Translation::quantifier() {
  std::string text(1, peek());
  bool fixed = false, braces = peek() == '{';
  if (braces && !interval(&text, &fixed)) {
    begin_item();
    out_ += "\\{";
    ++at_;
    return;
  }
  if (braces && extended_) stop("intervals after (?x) may have blanks in them");
  if (braces) {
    at_ = pattern_.find('}', at_) + 1;
  } else {
    ++at_;
  }
  if ((peek() == '?' && !fixed) || (peek() == '+' && !braces)) text += pattern_[at_++];
  if (last_ == Last::nothing) stop("a quantifier of nothing");
  if (last_ == Last::quantifier) stop("a quantifier of a quantifier");
  if (last_ == Last::interval) {
    out_.insert(item_, "(?:");
    out_ += ")";
    braces = false;  // a third is refused
  }
  out_ += text;
  last_ = braces ? Last::interval : Last::quantifier;
}

}  // namespace

void refuse_pattern(std::string_view pattern, std::string_view where, const std::string& why) {
  fail(ErrorCode::unsupported, "a split pattern that PCRE2 can run as its author meant it",
       std::string(where) + ": \"" + std::string(pattern.substr(0, 200)) + "\": " + why,
       "use one of the known patterns (GPT-2, Llama 3, Qwen, o200k) or rewrite this one");
}

std::string pcre2_pattern(std::string_view pattern, std::string_view where) {
  return Translation(pattern, where).run();
}

}  // namespace snug
