#include "engine/text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/core/error.h"

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

CharClass class_by_category(char32_t code) {
  if (is_white_space(code)) return CharClass::space;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::number;
    default:
      return CharClass::other;
  }
}

// The Basic Multilingual Plane, tabulated at first use: the splitter asks once per character.
const std::vector<CharClass>& class_table() {
  static const std::vector<CharClass> table = [] {
    std::vector<CharClass> t(0x10000);
    for (char32_t code = 0; code < 0x10000; ++code) t[code] = class_by_category(code);
    return t;
  }();
  return table;
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
  return code < 0x10000 ? class_table()[code] : class_by_category(code);
}

bool is_word_char(char32_t code) {
  if (char_class(code) == CharClass::letter || code == 0x200C || code == 0x200D) return true;
  // Symbols that are Alphabetic all the same: letters in circles and squares.
  if (code >= 0x24B6 && code <= 0x24E9) return true;
  if (code >= 0x1F130 && code <= 0x1F189) {
    return code <= 0x1F149 || (code >= 0x1F150 && code <= 0x1F169) || code >= 0x1F170;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

std::string normalize_utf8(std::string_view text, NormalForm form) {
  if (ascii_prefix(text, 0) == text.size()) return std::string(text);
  int options = UTF8PROC_STABLE;
  if (form == NormalForm::nfc || form == NormalForm::nfkc) options |= UTF8PROC_COMPOSE;
  if (form == NormalForm::nfd || form == NormalForm::nfkd) options |= UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                          static_cast<utf8proc_ssize_t>(text.size()), &result,
                                          static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  if (n < 0) {
    fail(ErrorCode::data, "text that Unicode normalisation accepts",
         std::string("utf8proc: ") + utf8proc_errmsg(n), "split the text into smaller pieces");
  }
  return std::string(reinterpret_cast<const char*>(result), static_cast<size_t>(n));
}

}  // namespace snug
