#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/core/error.h"
#include "engine/text/regex_syntax.h"
#include "engine/text/unicode.h"

namespace snug {
namespace {

// Patterns longer than this are not tokenizer patterns (the longest known has under 400 bytes).
constexpr size_t kMaxPattern = 64 * 1024;

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
  if (pattern.size() > kMaxPattern) refuse_pattern(pattern, where, "longer than 64 KiB");
  const std::string text = pcre2_pattern(pattern, where);
  int error = 0;
  size_t offset = 0;
  // Ruby's ^ and $ always match at lines; \C could cut a character in two. What PCRE2 (10.42) makes
  // possessive by itself it does not look far enough for: with a*(?:b)?+a it gives no a back.
  code_->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_POSSESS,
      &error, &offset, nullptr);
  if (!code_->code) {
    refuse_pattern(pattern, where, pcre2_message(error) + " at byte " + std::to_string(offset));
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
         "pattern \"" + beginning_utf8(pattern_, 200) + "\" at byte " + std::to_string(position) +
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
