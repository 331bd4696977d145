// Regular expressions as tokenizer files write them (Oniguruma, Ruby syntax), run by PCRE2 with
// JIT. Where the two read a construct in different ways the pattern is translated (regex_syntax.h):
//   \s \S         White_Space
//   \w \W \b \B   letters, marks, numbers and connectors
//   \d \p{..}     of a general category, a script or a POSIX class: as unicode_table.h, whatever
//   [[:name:]]    version of Unicode PCRE2 has and whatever it takes the name for
//   \h \uHHHH     a hexadecimal digit, and a character by its code
//   X{n,m}+       X{n,m}, once or more; so is X{n}? X{n} or nothing, and X{,m} is X{0,m}
//   (?m) (?i)     m lets the dot take line breaks; alone they hold for the alternatives behind, too
//   (?x)          blanks and comments are left out
//   ^ $           at lines
//   \v \Q \E \pL  a vertical tab, and letters
// Refused are constructs that PCRE2 has no equal for (class intersection `&&`; what in (?i) one
// character can match for several, as U+00DF does for ss), other properties (\p{Emoji}), and what
// Oniguruma does not have ((?s), (?P, (?|, (*..), a range from or to a set as in [\w-z], a
// quantifier of (?:\b)).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace snug {

// What a search needs beside the pattern; one per thread, usable with every Regex.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Data;
  std::unique_ptr<Data> data_;
};

// Immutable after construction; may be searched by many threads, each with its own scratch.
class Regex {
 public:
  // Throws Error (unsupported) if the pattern does not compile; `where` names its place.
  Regex(std::string_view pattern, std::string_view where);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // The first match that starts at or after `position`; false if none. `text` is valid UTF-8.
  // Throws Error (data) if the match exceeds PCRE2's limits (a pattern that backtracks without
  // end).
  bool find(std::string_view text, size_t position, RegexScratch& scratch, size_t& begin,
            size_t& end) const;

  // out = the text with every match replaced by `content`. An empty match right after another match
  // does not count. False, and `out` is not to be used, if more than max_bytes would come of it.
  // Throws as find does.
  bool replace_all(std::string_view text, std::string_view content, RegexScratch& scratch,
                   size_t max_bytes, std::string& out) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string pattern_;  // as written, for messages
};

}  // namespace snug
