#include "engine/text/regex_syntax.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/text/regex_sets.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

// Of what PCRE2 is given, where one \w may be kilobytes of ranges.
constexpr size_t kMaxTranslated = 4 << 20;
constexpr size_t kMostGroups = 200;  // one in the other; PCRE2 has 250

// Outside of [...].
std::string word_class() {
  return "[" + *property_members("word", false, SetPlace::alone) + "]";
}

constexpr const char* kLongFold =
    "in (?i) one character can stand for several here (\u00DF for ss), which PCRE2 does not know";

bool is_octal(char c) {
  return c >= '0' && c <= '7';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_hex(char c) {
  return std::isxdigit(static_cast<unsigned char>(c)) != 0;
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
    size_t begin;           // in out_
    bool folds = false;     // around it: (?i) holds
    bool extended = false;  // around it: (?x) holds
    size_t isolated = 0;    // options such as (?i) in it, which hold to its end
    bool looks = false;     // ahead or behind
    bool plain = false;     // (?:..)
    // Of the alternative that at_ is in: how many items, and whether the last only asks where it
    // is. (?:..) of one alternative that is one such item is nothing that can be repeated.
    size_t items = 0;
    bool asks = false, unrepeatable = false;
  };
  enum class Last { nothing, item, quantifier, interval };     // what stands before at_
  enum class Member { nothing, character, dash, range, set };  // and in [...]

  [[noreturn]] void stop(const std::string& why) const { refuse_pattern(pattern_, where_, why); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  // Last::nothing: one that only asks where it is, and is not repeated.
  void begin_item(Last last = Last::item) {
    item_ = out_.size();
    last_ = last;
    count_item(last == Last::nothing);
  }
  // In Oniguruma what stands behind (?i) is one item, with all its alternatives.
  void count_item(bool asks) {
    Group& in = groups_.back();
    if (in.isolated > 0) return;
    ++in.items;
    in.asks = asks;
  }
  void end_alternative() {
    Group& in = groups_.back();
    in.unrepeatable = in.unrepeatable || (in.items == 1 && in.asks);
    if (in.isolated == 0) in.items = 0;
  }
  void copy(size_t bytes) {
    bytes = std::min(bytes, pattern_.size() - at_);
    out_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }
  // Of options and groups of several characters: what is a run of literals stays one.
  void emit_within_run(std::string_view text) {
    const bool in_run = out_.size() == run_end_;
    out_ += text;
    if (in_run) run_end_ = out_.size();
  }
  // Up to and with the next `end`, or, without one, the rest.
  void copy_through(char end) {
    const size_t close = pattern_.find(end, at_);
    copy(close == std::string_view::npos ? pattern_.size() : close + 1 - at_);
  }
  void part();
  void class_part();
  void add_member(Member member);
  void hyphen();
  void literal(char32_t code, std::string_view text);
  void escape();
  char32_t digits(int base, size_t least, size_t most);
  void character(char32_t code);
  void byte(char32_t code);
  void named_set(std::string_view name, bool negated);
  void property(bool negated);
  void group();
  void options();
  bool interval(std::string* text, bool* fixed) const;
  void quantifier();

  std::string_view pattern_, where_;
  std::string out_;
  size_t at_ = 0;           // in pattern_
  size_t item_ = 0;         // where in out_ the item begins that a quantifier would repeat
  size_t class_begin_ = 0;  // in pattern_, behind [ or [^
  std::u32string run_;      // literals of (?i) one behind the other, folded
  size_t run_end_ = 0;      // in out_
  Last last_ = Last::nothing;
  Member member_ = Member::nothing;
  bool in_class_ = false, extended_ = false, folds_ = false;
  size_t isolated_ = 0;  // of all groups
  size_t sets_ = 0;      // named in [...]
  std::vector<Group> groups_;
};

// One item outside of [...], or what stands between two.
void Translation::part() {
  const char c = peek();
  if (extended_ && std::string_view(" \t\n\f\r").find(c) != std::string_view::npos) {
    ++at_;
  } else if (extended_ && c == '#') {
    at_ = std::min(pattern_.find('\n', at_), pattern_.size());
  } else if (c == '\\') {
    const bool asks = std::string_view("bBAzZGK").find(peek(1)) != std::string_view::npos;
    begin_item(asks ? Last::nothing : Last::item);
    escape();
  } else if (c == '(') {
    group();
  } else if (c == ')') {
    end_alternative();
    const Group& ended = groups_.back();
    const bool asks = ended.looks || (ended.plain && ended.unrepeatable);
    last_ = asks ? Last::nothing : Last::item;
    size_t ends = 1;
    if (groups_.size() > 1) {
      ends += groups_.back().isolated;
      item_ = groups_.back().begin;
      folds_ = groups_.back().folds;
      extended_ = groups_.back().extended;
      groups_.pop_back();
      count_item(asks);
    }
    emit_within_run(std::string(ends, ')'));
    ++at_;
  } else if (c == '[') {
    begin_item();
    in_class_ = true;
    member_ = Member::nothing;
    copy(peek(1) == '^' ? 2 : 1);
    class_begin_ = at_;
  } else if (c == '|') {
    end_alternative();
    last_ = Last::nothing;
    copy(1);
  } else if (c == '^' || c == '$') {
    begin_item(Last::nothing);
    copy(1);
  } else if (c == '*' || c == '+' || c == '?' || c == '{') {
    quantifier();
  } else {
    begin_item();
    const Utf8Char character = decode_utf8(pattern_, at_);
    const std::string_view text = pattern_.substr(at_, character.length);
    at_ += character.length;
    literal(character.code, text);
  }
}

void Translation::class_part() {
  const char c = peek();
  if (c == '\\') {
    const size_t sets = sets_;
    escape();
    if (sets == sets_) add_member(Member::character);
  } else if (c == ']' && at_ == class_begin_) {
    out_ += "\\]";
    ++at_;
    add_member(Member::character);
  } else if (c == ']') {
    in_class_ = false;
    copy(1);
    const std::string set = out_.substr(item_);
    if (folds_ && !set.starts_with("[^") && has_long_fold(set)) stop(kLongFold);
  } else if (next_is("&&")) {
    stop("class intersection && is not known to PCRE2");
  } else if (c == '[') {
    const size_t close = pattern_.find(":]", at_);
    if (peek(1) != ':' || close == std::string_view::npos)
      stop("a class inside a class is not known to PCRE2");
    const bool negated = peek(2) == '^';
    const size_t begin = at_ + (negated ? 3 : 2);
    const std::string name(pattern_.substr(begin, std::max(close, begin) - begin));
    const std::string_view property = posix_property(name);
    if (property.empty()) stop("[:" + name + ":] is no POSIX class");
    named_set(property, negated);
    at_ = close + 2;
  } else if (c == '-') {
    hyphen();
  } else {
    copy(decode_utf8(pattern_, at_).length);
    add_member(Member::character);
  }
}

// What now stands before at_ in [...].
void Translation::add_member(Member member) {
  const bool ends_range = member_ == Member::dash;
  if (ends_range && member == Member::set) stop("a range that ends with a set of characters");
  member_ = ends_range ? Member::range : member;
}

// A '-' in [...]. Beside a set that PCRE2 is given as ranges it would be the middle of another one.
void Translation::hyphen() {
  copy(1);
  if (peek() == ']') return;  // itself: the last one
  if (member_ == Member::set) stop("a range that begins with a set of characters");
  if (member_ == Member::character)
    member_ = Member::dash;
  else
    add_member(Member::character);
}

// A character outside of [...], as PCRE2 has it in `text`; at_ stands behind it.
void Translation::literal(char32_t code, std::string_view text) {
  if (!folds_) {
    out_ += text;
    return;
  }
  const bool repeated = peek() == '*' || peek() == '+' || peek() == '?';
  if (out_.size() != run_end_ || repeated) run_.clear();
  for (const char32_t folded : fold_case(code)) {
    run_ += folded;
    if (ends_with_long_fold(run_)) stop(kLongFold);
  }
  out_ += text;
  run_end_ = out_.size();
}

void Translation::named_set(std::string_view name, bool negated) {
  const SetPlace place = !in_class_ ? SetPlace::alone
                         : folds_   ? SetPlace::in_folding_class
                                    : SetPlace::in_class;
  // Of a newer Unicode than PCRE2's the other cases are not known to it.
  if (place == SetPlace::in_folding_class && is_of_one_case(name))
    stop("\\p{" + std::string(name) + "} in [...] of (?i) has another meaning in PCRE2");
  const std::string* members = property_members(name, negated && in_class_, place);
  if (!members) stop("no general category, script or POSIX class: \\p{" + std::string(name) + "}");
  if (in_class_) {
    ++sets_;
    add_member(Member::set);
    out_ += *members;
    return;
  }
  // Alone it is what it is, whatever the case; PCRE2 would add the other case.
  if (folds_) out_ += "(?-i:";
  out_ += (negated ? "[^" : "[") + *members + "]";
  if (folds_) out_ += ")";
}

// \p{..} or \P{..}, at the brace.
void Translation::property(bool negated) {
  const size_t close = pattern_.find('}', at_);
  if (close == std::string_view::npos) stop("a property without an end");
  std::string_view name = pattern_.substr(at_ + 1, close - at_ - 1);
  if (name.starts_with('^')) {
    negated = !negated;
    name.remove_prefix(1);
  }
  named_set(name, negated);
  at_ = close + 1;
}

// The code that `least` to `most` digits at at_ stand for.
char32_t Translation::digits(int base, size_t least, size_t most) {
  size_t count = 0;
  while (count < most && (base == 8 ? is_octal(peek(count)) : is_hex(peek(count)))) ++count;
  if (count < least) stop("a code of a character without its digits");
  const std::string text(pattern_.substr(at_, count));
  at_ += count;
  const auto code = std::strtoul(text.c_str(), nullptr, base);
  if (code > 0x10FFFF) stop("a code above 10FFFF, which no character has");
  return static_cast<char32_t>(code);
}

// By its code, inside or outside of [...].
void Translation::character(char32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, "\\x{%X}", static_cast<unsigned>(code));
  if (in_class_) {
    out_ += text;
  } else {
    literal(code, text);
  }
}

void Translation::byte(char32_t code) {
  if (code >= 0x80) stop("a byte that is no character");
  character(code);
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
      return named_set("xdigit", next == 'H');
    case 's':
    case 'S':
      return named_set("space", next == 'S');
    case 'w':
    case 'W':
      return named_set("word", next == 'W');
    case 'd':
    case 'D':
      return named_set("digit", next == 'D');
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
        const std::string in = word_class(), behind = "(?<=" + in + ")",
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
      return property(next == 'P');
    case 'x':
    case 'o':
      if (peek() == '{') {
        ++at_;
        const char32_t code = digits(next == 'x' ? 16 : 8, 1, next == 'x' ? 8 : 11);
        if (peek() != '}') stop("a code of a character without an end");
        ++at_;
        return character(code);
      }
      if (next == 'o') stop("\\o without a brace");
      return byte(digits(16, 1, 2));
    case 'c':
      if (std::isalpha(static_cast<unsigned char>(peek())) == 0) stop("\\c without a letter");
      return character(static_cast<char32_t>(pattern_[at_++] & 0x1F));
    case 'u':
      return character(digits(16, 4, 4));
    case 'k':
    case 'g':
      if (peek() != '<' && peek() != '\'')
        stop(std::string("\\") + next + " without a name in < > or ' '");
      if (folds_) stop("a back-reference in (?i)");
      out_ += std::string("\\") + next + peek();
      ++at_;
      return copy_through(out_.back() == '<' ? '>' : '\'');
    case 'N':
      if (!in_class_ && next_is("{U+")) stop("\\N{U+ has another meaning in PCRE2");
      break;
    default:
      break;
  }
  if (is_octal(next) && (next == '0' || in_class_)) {
    --at_;
    return byte(digits(8, 1, 3));
  }
  if (is_digit(next) && !in_class_) {
    if (is_digit(peek())) stop("a back-reference of several digits");
    if (folds_) stop("a back-reference in (?i)");
    out_ += std::string("\\g{") + next + "}";
    return;
  }
  // As it stands, with what belongs to it: a quantifier repeats it whole.
  at_ = before;
  if (static_cast<unsigned char>(next) >= 0x80) {
    ++at_;
    return in_class_ ? copy(decode_utf8(pattern_, at_).length) : part();
  }
  copy(2);
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
                     .extended = extended_,
                     .looks = opens.ends_with('=') || opens.ends_with('!'),
                     .plain = opens == "(?:"});
  last_ = Last::nothing;
  if (opens == "(?:") {
    emit_within_run(opens);
    at_ += bytes;
  } else {
    const bool looks_ahead = opens == "(?=";
    copy(bytes);
    // PCRE2 (10.42) takes what a look ahead begins with for the beginning of the match, and then
    // asks for it once more behind that: (?=a)e?a would find no a. Not behind something.
    if (looks_ahead) out_ += "(?:)";
  }
}

// (?imx-imx:..), and (?imx-imx), which in Ruby's syntax holds as a group up to the end of the one
// it stands in, alternatives behind it included.
void Translation::options() {
  std::string on, off;  // of those that PCRE2 is told; (?x) it is not
  bool minus = false, folds = folds_, extended = extended_;
  for (at_ += 2; peek() != ':' && peek() != ')'; ++at_) {
    const char c = peek();
    if (c != 'i' && c != 'm' && c != 'x' && (c != '-' || minus))
      stop(std::string("(?") + (c == '\0' ? ' ' : c) + " is not known, or has another meaning");
    minus = minus || c == '-';
    if (c == 'i') folds = !minus;
    if (c == 'x') extended = !minus;
    if (c == 'i' || c == 'm') (minus ? off : on) += c == 'm' ? 's' : c;
  }
  if (peek() == ':') {
    groups_.push_back({.begin = out_.size(), .folds = folds_, .extended = extended_});
  } else {
    if (++isolated_ > kMostGroups) stop("too many groups in each other");
    count_item(false);
    ++groups_.back().isolated;
  }
  ++at_;
  folds_ = folds;
  extended_ = extended;
  emit_within_run("(?" + on + (off.empty() ? "" : "-" + off) + ":");
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
       std::string(where) + ": \"" + beginning_utf8(pattern, 200) + "\": " + why,
       "use one of the known patterns (GPT-2, Llama 3, Qwen, o200k) or rewrite this one");
}

std::string pcre2_pattern(std::string_view pattern, std::string_view where) {
  return Translation(pattern, where).run();
}

}  // namespace snug
