#include <cstdlib>
#include <optional>

#include "engine/core/error.h"
#include "engine/text/jinja_syntax.h"
#include "engine/text/jinja_text.h"
#include "engine/text/unicode.h"

namespace snug::jinja {

void fail_at(const std::string& name, int64_t line, const std::string& expected,
             const std::string& found, const std::string& advice) {
  fail(ErrorCode::data, expected, found + ", at " + name + ":" + std::to_string(line), advice);
}

namespace {

constexpr const char* kMend = "correct the template";

// Line breaks become \n, and one at the end goes, as jinja2 has it.
std::string normalized(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool digit(char c) {
  return c >= '0' && c <= '9';
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : source_(normalized(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    add(TokenKind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void bad(const std::string& expected, const std::string& found) const {
    fail_at(name_, line_, expected, found, kMend);
  }
  bool starts(std::string_view text, size_t at) const {
    return std::string_view(source_).substr(at, text.size()) == text;
  }
  Token& add(TokenKind kind, std::string text = "") {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::move(text)});
    return tokens_.back();
  }
  void advance(size_t to) {
    for (; at_ < to; ++at_) line_ += source_[at_] == '\n';
  }
  size_t behind_spaces(size_t at) const {
    while (at < source_.size()) {
      const Utf8Char c = decode_utf8(source_, at);
      if (!is_python_space(c.code)) break;
      at += c.length;
    }
    return at;
  }
  size_t before_spaces(size_t begin, size_t end) const {
    return begin + strip_end(std::string_view(source_).substr(begin, end - begin));
  }

  // Ends `open` at the end of a tag; `newline`: a line break behind goes too. npos: no end here.
  size_t tag_end(size_t at, std::string_view close, bool plus, bool newline) const {
    if (plus && source_[at] == '+' && starts(close, at + 1)) return at + 1 + close.size();
    if (source_[at] == '-' && starts(close, at + 1)) return behind_spaces(at + 1 + close.size());
    if (!starts(close, at)) return std::string::npos;
    at += close.size();
    return newline && at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  // The data before a tag that begins at `tag` with the sign `sign`.
  void data_until(size_t tag, char sign, bool variable) {
    size_t end = tag;
    if (sign == '-') {
      end = before_spaces(at_, tag);
    } else if (sign != '+' && !variable) {
      size_t line = tag;
      while (line > at_ && source_[line - 1] != '\n') --line;
      if ((line > at_ || line_starting_) && behind_spaces(line) >= tag && line < tag) end = line;
    }
    if (end > at_) add(TokenKind::data, source_.substr(at_, end - at_));
    advance(tag);
  }

  std::optional<size_t> raw_end(size_t at) const {  // behind "{% raw %}", at: behind its sign
    at = behind_spaces(at);
    if (!starts("raw", at)) return std::nullopt;
    at = behind_spaces(at + 3);
    if (starts("-%}", at)) return behind_spaces(at + 3);
    if (starts("%}", at)) return at + 2;
    return std::nullopt;
  }

  void root() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add(TokenKind::data, source_.substr(at_));
        advance(source_.size());
        return;
      }
      const char c = source_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
    }
    const char kind = source_[tag + 1];
    size_t behind = tag + 2;
    char sign = 0;
    if (behind < source_.size() && (source_[behind] == '-' || source_[behind] == '+'))
      sign = source_[behind++];
    if (kind == '#') return comment(tag, behind, sign);
    if (kind == '%') {
      if (const auto raw = raw_end(behind)) return verbatim(tag, *raw, sign);
    }
    data_until(tag, sign, kind == '{');
    add(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin);
    advance(behind);
    inside(kind == '{');
  }

  void comment(size_t tag, size_t behind, char sign) {
    data_until(tag, sign, false);
    if (behind >= source_.size()) return advance(behind);  // jinja2 lets it stand
    for (size_t end = behind; end < source_.size(); ++end) {
      const size_t to = tag_end(end, "#}", true, true);
      if (to == std::string::npos) continue;
      advance(to);
      line_starting_ = source_[to - 1] == '\n';
      return;
    }
    bad("a comment that ends with '#}'", "one without an end");
  }

  void verbatim(size_t tag, size_t begin, char sign) {
    data_until(tag, sign, false);
    advance(begin);
    line_starting_ = source_[begin - 1] == '\n';
    if (begin >= source_.size()) return;  // jinja2 lets it stand
    for (size_t end = at_;; ++end) {
      end = source_.find("{%", end);
      if (end == std::string::npos) bad("a raw block that ends with '{% endraw %}'", "no end");
      size_t at = end + 2;
      char close = 0;
      if (at < source_.size() && (source_[at] == '-' || source_[at] == '+')) close = source_[at++];
      at = behind_spaces(at);
      if (!starts("endraw", at)) continue;
      at = behind_spaces(at + 6);
      const size_t to = at < source_.size() ? tag_end(at, "%}", true, true) : std::string::npos;
      if (to == std::string::npos) continue;
      data_until(end, close, false);
      advance(to);
      line_starting_ = source_[to - 1] == '\n';
      return;
    }
  }

  void inside(bool variable) {
    std::string open;  // brackets, by what closes them
    const std::string_view close = variable ? "}}" : "%}";
    while (at_ < source_.size()) {
      if (open.empty()) {
        const size_t to = tag_end(at_, close, !variable, !variable);
        if (to != std::string::npos) {
          add(variable ? TokenKind::variable_end : TokenKind::block_end);
          line_starting_ = source_[to - 1] == '\n';
          advance(to);
          return;
        }
      }
      const size_t spaces = behind_spaces(at_);
      if (spaces > at_) {
        advance(spaces);
        continue;
      }
      const char c = source_[at_];
      if (digit(c)) {
        number();
      } else if (name_start(c)) {
        size_t end = at_;
        while (end < source_.size() && (name_start(source_[end]) || digit(source_[end]))) ++end;
        add(TokenKind::name, source_.substr(at_, end - at_));
        advance(end);
      } else if (c == '\'' || c == '"') {
        string();
      } else {
        op(open);
      }
    }
    bad(std::string("a tag that ends with '") + std::string(close) + "'",
        "the end of the template");
  }

  void op(std::string& open) {
    static constexpr std::string_view kOps[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view o : kOps) {
      if (!starts(o, at_)) continue;
      if (o == "(" || o == "[" || o == "{") {
        open += o == "(" ? ')' : o == "[" ? ']' : '}';
      } else if (o == ")" || o == "]" || o == "}") {
        if (open.empty() || open.back() != o[0])
          bad(open.empty() ? "brackets that match" : std::string("'") + open.back() + "'",
              "'" + std::string(o) + "'");
        open.pop_back();
      }
      add(TokenKind::op, std::string(o));
      advance(at_ + o.size());
      return;
    }
    const Utf8Char c = decode_utf8(source_, at_);
    bad("names of ASCII letters, numbers, strings and operators in a tag",
        "'" + printable_utf8(source_.substr(at_, c.length), LineBreaks::shown) + "'");
  }

  // The end of digits, single '_' between them.
  template <class F>
  size_t digits(size_t at, F&& is) const {
    while (
        at < source_.size() &&
        (is(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && is(source_[at + 1]))))
      ++at;
    return at;
  }

  void number() {
    size_t end = digits(at_, digit);
    bool real = false;
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && digit(source_[end + 1])) {
      end = digits(end + 1, digit);
      real = true;
    }
    if (!after_dot && end < source_.size() && (source_[end] | 32) == 'e') {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-'))
        ++exponent;
      if (exponent < source_.size() && digit(source_[exponent])) {
        end = digits(exponent, digit);
        real = true;
      }
    }
    int base = 10;
    if (!real && source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char kind = static_cast<char>(source_[at_ + 1] | 32);
      base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
      if (base != 10) {
        const auto is = [base](char c) {
          return digit(c) ? c - '0' < base : base == 16 && (c | 32) >= 'a' && (c | 32) <= 'f';
        };
        end = digits(at_ + 2, is);
        if (end == at_ + 2) bad("digits", "'" + source_.substr(at_, 2) + "'");
      } else if (source_.find_first_not_of("0_", at_) < end) {
        end = at_ + 1;  // "012" is 0 and then 12, which no rule of the grammar takes
      }
    }
    std::string text;
    for (size_t i = base == 10 ? at_ : at_ + 2; i < end; ++i)
      if (source_[i] != '_') text += source_[i];
    Token& token = add(real ? TokenKind::real : TokenKind::integer);
    if (real) {
      token.real = std::strtod(text.c_str(), nullptr);
    } else {
      errno = 0;
      token.integer = std::strtoll(text.c_str(), nullptr, base);
      if (errno) bad("an integer of at most 64 bits", text);
    }
    advance(end);
  }

  void string() {
    const char quote = source_[at_];
    std::string value;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\') {
        value += source_[i];
        continue;
      }
      if (++i >= source_.size()) break;
      i = escape(i, value);
    }
    if (i >= source_.size()) bad("a string that ends", "one without an end");
    if (!is_valid_utf8(value)) bad("a string of characters", "half of a surrogate pair");
    add(TokenKind::string, value);
    advance(i + 1);
  }

  // Python's escapes; returns the place of the last character read.
  size_t escape(size_t i, std::string& value) {
    const char c = source_[i];
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t k = kFrom.find(c); k != std::string_view::npos) {
      value += kTo[k];
      return i;
    }
    if (c == '\n') return i;
    if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t n = 0;
      for (; n < 3 && i + n < source_.size() && source_[i + n] >= '0' && source_[i + n] <= '7'; ++n)
        code = code * 8 + static_cast<char32_t>(source_[i + n] - '0');
      append_utf8(value, code);
      return i + n - 1;
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::string hex = source_.substr(i + 1, n);
      if (hex.size() < n || hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos)
        bad(std::to_string(n) + " hexadecimal digits after \\" + c, "'" + hex + "'");
      const auto code = static_cast<char32_t>(std::strtoul(hex.c_str(), nullptr, 16));
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        bad("a character", "\\" + (c + hex));
      append_utf8(value, code);
      return i + n;
    }
    if (c == 'N') bad("escapes by number", "\\N, a character by its name");
    value += '\\';
    value += c;
    return i;
  }

  std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int64_t line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  if (!is_valid_utf8(source))
    fail(ErrorCode::data, "a template of valid UTF-8", name + " is not", "save it as UTF-8");
  return Lexer(source, name).run();
}

}  // namespace snug::jinja
