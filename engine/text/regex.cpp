#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "engine/core/error.h"

namespace snug {
namespace {

// The members of a class, without the brackets.
constexpr const char* kSpaceSet =
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
constexpr const char* kWordSet =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}"
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";

// Patterns longer than this are not tokenizer patterns (the longest known has under 400 bytes).
constexpr size_t kMaxPattern = 64 * 1024;

[[noreturn]] void refuse(std::string_view pattern, std::string_view where, const std::string& why) {
  fail(ErrorCode::unsupported, "a split pattern that PCRE2 can run as its author meant it",
       std::string(where) + ": \"" + std::string(pattern.substr(0, 200)) + "\": " + why,
       "use one of the known patterns (GPT-2, Llama 3, Qwen, o200k) or rewrite this one");
}

std::string translate(std::string_view pattern, std::string_view where) {
  std::string out;
  int depth = 0;  // of [...]
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      const bool space = next == 's' || next == 'S', word = next == 'w' || next == 'W';
      if (next == 'h' || next == 'H') refuse(pattern, where, "\\h has another meaning in PCRE2");
      if (space || word) {
        const bool negated = next == 'S' || next == 'W';
        if (depth == 0) {
          out += std::string(negated ? "[^" : "[") + (space ? kSpaceSet : kWordSet) + "]";
          continue;
        }
        if (!negated) {
          out += space ? kSpaceSet : kWordSet;
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

}  // namespace snug
