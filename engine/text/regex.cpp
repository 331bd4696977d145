#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdio>
#include <map>
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
// With the categories L, M, Nd, Nl and Pc.
constexpr const char* kWordRest =
    "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}"
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";

// Patterns longer than this are not tokenizer patterns (the longest known has under 400 bytes).
constexpr size_t kMaxPattern = 64 * 1024;
// And as PCRE2 is given it, where one \w may be kilobytes of ranges.
constexpr size_t kMaxTranslated = 4 << 20;

[[noreturn]] void refuse(std::string_view pattern, std::string_view where, const std::string& why) {
  fail(ErrorCode::unsupported, "a split pattern that PCRE2 can run as its author meant it",
       std::string(where) + ": \"" + std::string(pattern.substr(0, 200)) + "\": " + why,
       "use one of the known patterns (GPT-2, Llama 3, Qwen, o200k) or rewrite this one");
}

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

// What PCRE2 takes for the category, as one flag a code point.
std::vector<bool> pcre2_category(const std::string& name) {
  std::vector<bool> in(0x110000);
  const std::string pattern = "\\p{" + name + "}+";
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
  const std::vector<bool> theirs = pcre2_category(name);
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

// The category that \p{...} or \pX at `at` (after the p) names, and where it ends; empty for
// scripts and other properties, which stay PCRE2's.
std::string category_at(std::string_view pattern, size_t at, size_t& end, bool& negated) {
  std::string name;
  if (at < pattern.size() && pattern[at] == '{') {
    const size_t close = pattern.find('}', at);
    if (close == std::string_view::npos) return {};
    name = pattern.substr(at + 1, close - at - 1);
    end = close + 1;
    if (!name.empty() && name[0] == '^') {
      negated = !negated;
      name.erase(0, 1);
    }
  } else if (at < pattern.size()) {
    name = pattern.substr(at, 1);
    end = at + 1;
  }
  for (const char* known : kCategoryNames) {
    if (name == known || (name.size() == 1 && name[0] == known[0])) return name;
  }
  return {};
}

std::string word_set() {
  std::string out;
  for (const char* name : {"L", "M", "Nd", "Nl", "Pc"}) out += category_set(name).members;
  return out + kWordRest;
}

std::string translate(std::string_view pattern, std::string_view where) {
  std::string out;
  int depth = 0;  // of [...]
  // A set of characters, inside or outside of [...].
  const auto emit = [&](const std::string& members) {
    out += depth > 0 ? members : "[" + members + "]";
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (out.size() > kMaxTranslated) refuse(pattern, where, "too many character classes");
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 'h' || next == 'H') refuse(pattern, where, "\\h has another meaning in PCRE2");
      if (next == 's' || next == 'w') {
        emit(next == 's' ? kSpaceSet : word_set());
        continue;
      }
      if ((next == 'S' || next == 'W') && depth == 0) {
        out += "[^" + (next == 'S' ? std::string(kSpaceSet) : word_set()) + "]";
        continue;
      }
      if (next == 'd' || next == 'D') {
        const CategorySet& set = category_set("Nd");
        emit(next == 'd' ? set.members : set.complement);
        continue;
      }
      if (next == 'p' || next == 'P') {
        size_t end = 0;
        bool negated = next == 'P';
        const std::string name = category_at(pattern, i + 1, end, negated);
        if (!name.empty()) {
          const CategorySet& set = category_set(name);
          emit(negated ? set.complement : set.members);
          i = end - 1;
          continue;
        }
      }
      out += c;
      out += next;
      continue;
    }
    if (depth > 0 && c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
      refuse(pattern, where, "class intersection && is not known to PCRE2");
    }
    if (depth > 0 && c == '[' && (i + 1 >= pattern.size() || pattern[i + 1] != ':')) {
      refuse(pattern, where, "a class inside a class is not known to PCRE2");
    }
    if (c == '[') ++depth;
    if (c == ']' && depth > 0) --depth;
    out += c;
  }
  return out;
}

std::string pcre2_message(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct RegexScratch::Data {
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

RegexScratch::RegexScratch() : data_(std::make_unique<Data>()) {
  // One pair of offsets is enough: only the whole match matters.
  data_->match = pcre2_match_data_create(1, nullptr);
  data_->context = pcre2_match_context_create(nullptr);
  data_->stack = pcre2_jit_stack_create(32 * 1024, 16 * 1024 * 1024, nullptr);
  if (data_->context && data_->stack) {
    pcre2_jit_stack_assign(data_->context, nullptr, data_->stack);
  }
}

RegexScratch::~RegexScratch() {
  pcre2_match_data_free(data_->match);
  pcre2_match_context_free(data_->context);
  pcre2_jit_stack_free(data_->stack);
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::string_view pattern, std::string_view where)
    : code_(std::make_unique<Code>()), pattern_(pattern) {
  if (pattern.size() > kMaxPattern) refuse(pattern, where, "longer than 64 KiB");
  const std::string text = translate(pattern, where);
  int error = 0;
  size_t offset = 0;
  // Ruby's ^ and $ always match at lines; \C could cut a character in two.
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                              &error, &offset, nullptr);
  if (!code_->code) {
    refuse(pattern, where, pcre2_message(error) + " at byte " + std::to_string(offset));
  }
  // Where executable memory is forbidden this fails and pcre2_match interprets instead.
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::find(std::string_view text, size_t position, RegexScratch& scratch, size_t& begin,
                 size_t& end) const {
  const int result =
      pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), position,
                  PCRE2_NO_UTF_CHECK, scratch.data_->match, scratch.data_->context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    fail(ErrorCode::data, "text that the split pattern can cut within PCRE2's limits",
         "pattern \"" + pattern_.substr(0, 200) + "\" at byte " + std::to_string(position) +
             " of " + std::to_string(text.size()) + ": " + pcre2_message(result),
         "break the text into shorter documents or use a simpler pattern");
  }
  const size_t* offsets = pcre2_get_ovector_pointer(scratch.data_->match);
  begin = offsets[0];
  end = offsets[1];
  // \K inside a look-behind can produce a match that lies before its own start; there is no split
  // then.
  return begin >= position && end >= begin;
}

bool Regex::replace_all(std::string_view text, std::string_view content, RegexScratch& scratch,
                        size_t max_bytes, std::string& out) const {
  out.clear();
  size_t done = 0, position = 0, begin = 0, end = 0, last = std::string_view::npos;
  while (position <= text.size() && find(text, position, scratch, begin, end)) {
    if (end > begin || begin != last) {
      out += text.substr(done, begin - done);
      out += content;
      done = last = end;
    }
    position = end;
    if (end == begin) position += end < text.size() ? decode_utf8(text, end).length : 1;
    if (out.size() > max_bytes) return false;
  }
  out += text.substr(done);
  return out.size() <= max_bytes;
}

}  // namespace snug
