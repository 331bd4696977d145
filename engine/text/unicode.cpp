#include "engine/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/core/error.h"
#include "engine/io/text_reader.h"
#include "engine/text/unicode_table.h"

namespace snug {
namespace {

bool is_ascii_block(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return (word & 0x8080808080808080ull) == 0;
}

size_t ascii_prefix(std::string_view text, size_t position) {
  while (position + 8 <= text.size() && is_ascii_block(text.data() + position)) position += 8;
  while (position < text.size() && static_cast<uint8_t>(text[position]) < 0x80) ++position;
  return position;
}

CharClass class_of_kind(uint16_t kind) {
  switch (static_cast<Category>(kind & 31)) {
    case Category::lu:
    case Category::ll:
    case Category::lt:
    case Category::lm:
    case Category::lo:
      return CharClass::letter;
    case Category::nd:
    case Category::nl:
    case Category::no:
      return CharClass::number;
    default:
      return CharClass::other;
  }
}

constexpr int kLongRun = 64;

// utf8proc sorts a run of combining marks by exchanging neighbours, which is quadratic. Putting
// long runs into canonical order beforehand (stable, so canonically equivalent) makes it linear.
std::string sort_marks(std::string_view text) {
  std::string out;
  std::vector<std::pair<int, std::string_view>> run;
  const auto flush = [&] {
    std::stable_sort(run.begin(), run.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [order, bytes] : run) out += bytes;
    run.clear();
  };
  for (size_t position = 0; position < text.size();) {
    const Utf8Char c = decode_utf8(text, position);
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    const int order = static_cast<int>(utf8proc_get_property(code)->combining_class);
    const std::string_view bytes = text.substr(position, c.length);
    if (order == 0) {
      flush();
      out += bytes;
    } else {
      run.emplace_back(order, bytes);
    }
    position += c.length;
  }
  flush();
  return out;
}

bool is_mark_category(uint16_t kind) {
  const auto category = static_cast<Category>(kind & 31);
  return category == Category::mn || category == Category::mc || category == Category::me;
}

// Normalises a piece without frozen characters and appends it.
void append_normalized(std::string_view text, bool long_runs, utf8proc_option_t options,
                       std::string& out) {
  std::string sorted;
  if (long_runs) {
    sorted = sort_marks(text);
    text = sorted;
  }
  if (ascii_prefix(text, 0) == text.size()) {
    out += text;
    return;
  }
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result, options);
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (n < 0) {
    fail(ErrorCode::data, "text that Unicode normalisation accepts",
         std::string("utf8proc: ") + utf8proc_errmsg(n), "split the text into smaller pieces");
  }
  out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(n));
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(position);
  if (lead < 0x80) return {lead, 1, true, false};
  int extra = 0;
  char32_t code = 0;
  // The second byte's range excludes overlong forms, surrogates and codes above U+10FFFF
  // (The Unicode Standard, table 3-7).
  uint8_t low = 0x80, high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    extra = 1;
    code = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    extra = 2;
    code = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    extra = 3;
    code = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0xFFFD, 1, false, false};
  }
  for (int i = 1; i <= extra; ++i) {
    const size_t at = position + static_cast<size_t>(i);
    if (at >= text.size()) return {0xFFFD, static_cast<uint8_t>(i), false, true};
    const uint8_t b = byte(at);
    if (b < low || b > high) return {0xFFFD, static_cast<uint8_t>(i), false, false};
    code = (code << 6) | (b & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code, static_cast<uint8_t>(extra + 1), true, false};
}

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  size_t position = ascii_prefix(text, 0);
  while (position < text.size()) {
    const Utf8Char c = decode_utf8(text, position);
    if (!c.valid) return false;
    position = ascii_prefix(text, position + c.length);
  }
  return true;
}

std::string sanitize_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const Utf8Char c = decode_utf8(text, position);
    if (c.valid) {
      out.append(text.substr(position, c.length));
    } else {
      append_utf8(out, 0xFFFD);
    }
    position += c.length;
  }
  return out;
}

std::string printable_utf8(std::string_view text, LineBreaks breaks) {
  std::string out;
  out.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const Utf8Char c = decode_utf8(text, position);
    char escape[16];
    if (!c.valid) {
      append_utf8(out, 0xFFFD);
    } else if (breaks == LineBreaks::kept && (c.code == '\n' || c.code == '\t')) {
      out += static_cast<char>(c.code);
    } else if (c.code < 0x20 || (c.code >= 0x7F && c.code < 0xA0)) {
      std::snprintf(escape, sizeof escape, c.code < 0x80 ? "\\x%02x" : "\\u%04x",
                    static_cast<unsigned>(c.code));
      out += escape;
    } else {
      out.append(text.substr(position, c.length));
    }
    position += c.length;
  }
  return out;
}

std::string beginning_utf8(std::string_view text, size_t most) {
  return sanitize_utf8(text_beginning(text, most));
}

size_t utf8_complete_prefix(std::string_view text) {
  const size_t first = text.size() > 3 ? text.size() - 3 : 0;
  for (size_t position = text.size(); position-- > first;) {
    if ((static_cast<uint8_t>(text[position]) & 0xC0) == 0x80) continue;  // not a first byte
    const Utf8Char c = decode_utf8(text, position);
    return c.truncated && position + c.length == text.size() ? position : text.size();
  }
  return text.size();
}

bool is_white_space(char32_t code) {
  if (code <= 0x20) return code == 0x20 || (code >= 0x09 && code <= 0x0D);
  if (code < 0x1680) return code == 0x85 || code == 0xA0;
  return code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

CharClass char_class(char32_t code) {
  return is_white_space(code) ? CharClass::space : class_of_kind(char_kind(code));
}

bool is_word_char(char32_t code) {
  return (char_kind(code) & kWord) != 0;
}

char32_t lower_char(char32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 32 : code;
  const LowerRange* const end = kLowerRanges + kLowerRangeCount;
  const LowerRange* row = std::upper_bound(
      kLowerRanges, end, code, [](char32_t c, const LowerRange& r) { return c < r.first; });
  if (row == kLowerRanges) return code;
  --row;
  if (code > row->last || (code - row->first) % static_cast<uint32_t>(row->step) != 0) return code;
  return static_cast<char32_t>(static_cast<int64_t>(code) + row->delta);
}

std::u32string fold_case(char32_t code) {
  utf8proc_int32_t folded[4];  // no character becomes more than three
  int last_class = 0;
  const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), folded, 4,
                                                     UTF8PROC_CASEFOLD, &last_class);
  std::u32string out;
  for (utf8proc_ssize_t i = 0; i < n; ++i) out += static_cast<char32_t>(folded[i]);
  return out;
}

std::string normalize_utf8(std::string_view text, NormalForm form) {
  if (ascii_prefix(text, 0) == text.size()) return std::string(text);
  int options = UTF8PROC_STABLE;
  if (form == NormalForm::nfc || form == NormalForm::nfkc) options |= UTF8PROC_COMPOSE;
  if (form == NormalForm::nfd || form == NormalForm::nfkd) options |= UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  // A frozen character neither changes nor lets anything pass it: the pieces between are
  // independent.
  std::string out;
  out.reserve(text.size());
  size_t done = 0, position = 0;
  int run = 0;
  bool long_runs = false;
  const auto flush = [&](size_t end) {
    append_normalized(text.substr(done, end - done), long_runs,
                      static_cast<utf8proc_option_t>(options), out);
    done = end;
    run = 0;
    long_runs = false;
  };
  while (position < text.size()) {
    if (static_cast<uint8_t>(text[position]) < 0x80) {
      run = 0;
      position = ascii_prefix(text, position);
      continue;
    }
    const Utf8Char c = decode_utf8(text, position);
    const uint16_t kind = char_kind(c.code);
    run = is_mark_category(kind) ? run + 1 : 0;
    long_runs = long_runs || run > kLongRun;
    if (kind & kFrozen) {
      flush(position);
      out += text.substr(position, c.length);
      done = position + c.length;
    }
    position += c.length;
  }
  flush(text.size());
  return out;
}

}  // namespace snug
