#include "engine/text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "engine/text/unicode.h"

namespace snug::jinja {
namespace {

constexpr utf8proc_category_t kLetters[] = {UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL,
                                            UTF8PROC_CATEGORY_LT, UTF8PROC_CATEGORY_LM,
                                            UTF8PROC_CATEGORY_LO};

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}
char32_t simple(utf8proc_int32_t (*f)(utf8proc_int32_t), char32_t c) {
  return static_cast<char32_t>(f(static_cast<utf8proc_int32_t>(c)));
}

// Characters whose upper or title case is several (Unicode's SpecialCasing).
struct Several {
  char32_t code;
  const char32_t *upper, *title;
};
constexpr Several kSeveral[] = {{0xDF, U"\x53\x53", U"\x53\x73"},
                                {0x149, U"\x2BC\x4E", U"\x2BC\x4E"},
                                {0x1F0, U"\x4A\x30C", U"\x4A\x30C"},
                                {0x390, U"\x399\x308\x301", U"\x399\x308\x301"},
                                {0x3B0, U"\x3A5\x308\x301", U"\x3A5\x308\x301"},
                                {0x587, U"\x535\x552", U"\x535\x582"},
                                {0x1E96, U"\x48\x331", U"\x48\x331"},
                                {0x1E97, U"\x54\x308", U"\x54\x308"},
                                {0x1E98, U"\x57\x30A", U"\x57\x30A"},
                                {0x1E99, U"\x59\x30A", U"\x59\x30A"},
                                {0x1E9A, U"\x41\x2BE", U"\x41\x2BE"},
                                {0x1F50, U"\x3A5\x313", U"\x3A5\x313"},
                                {0x1F52, U"\x3A5\x313\x300", U"\x3A5\x313\x300"},
                                {0x1F54, U"\x3A5\x313\x301", U"\x3A5\x313\x301"},
                                {0x1F56, U"\x3A5\x313\x342", U"\x3A5\x313\x342"},
                                {0x1F80, U"\x1F08\x399", U"\x1F88"},
                                {0x1F81, U"\x1F09\x399", U"\x1F89"},
                                {0x1F82, U"\x1F0A\x399", U"\x1F8A"},
                                {0x1F83, U"\x1F0B\x399", U"\x1F8B"},
                                {0x1F84, U"\x1F0C\x399", U"\x1F8C"},
                                {0x1F85, U"\x1F0D\x399", U"\x1F8D"},
                                {0x1F86, U"\x1F0E\x399", U"\x1F8E"},
                                {0x1F87, U"\x1F0F\x399", U"\x1F8F"},
                                {0x1F88, U"\x1F08\x399", U"\x1F88"},
                                {0x1F89, U"\x1F09\x399", U"\x1F89"},
                                {0x1F8A, U"\x1F0A\x399", U"\x1F8A"},
                                {0x1F8B, U"\x1F0B\x399", U"\x1F8B"},
                                {0x1F8C, U"\x1F0C\x399", U"\x1F8C"},
                                {0x1F8D, U"\x1F0D\x399", U"\x1F8D"},
                                {0x1F8E, U"\x1F0E\x399", U"\x1F8E"},
                                {0x1F8F, U"\x1F0F\x399", U"\x1F8F"},
                                {0x1F90, U"\x1F28\x399", U"\x1F98"},
                                {0x1F91, U"\x1F29\x399", U"\x1F99"},
                                {0x1F92, U"\x1F2A\x399", U"\x1F9A"},
                                {0x1F93, U"\x1F2B\x399", U"\x1F9B"},
                                {0x1F94, U"\x1F2C\x399", U"\x1F9C"},
                                {0x1F95, U"\x1F2D\x399", U"\x1F9D"},
                                {0x1F96, U"\x1F2E\x399", U"\x1F9E"},
                                {0x1F97, U"\x1F2F\x399", U"\x1F9F"},
                                {0x1F98, U"\x1F28\x399", U"\x1F98"},
                                {0x1F99, U"\x1F29\x399", U"\x1F99"},
                                {0x1F9A, U"\x1F2A\x399", U"\x1F9A"},
                                {0x1F9B, U"\x1F2B\x399", U"\x1F9B"},
                                {0x1F9C, U"\x1F2C\x399", U"\x1F9C"},
                                {0x1F9D, U"\x1F2D\x399", U"\x1F9D"},
                                {0x1F9E, U"\x1F2E\x399", U"\x1F9E"},
                                {0x1F9F, U"\x1F2F\x399", U"\x1F9F"},
                                {0x1FA0, U"\x1F68\x399", U"\x1FA8"},
                                {0x1FA1, U"\x1F69\x399", U"\x1FA9"},
                                {0x1FA2, U"\x1F6A\x399", U"\x1FAA"},
                                {0x1FA3, U"\x1F6B\x399", U"\x1FAB"},
                                {0x1FA4, U"\x1F6C\x399", U"\x1FAC"},
                                {0x1FA5, U"\x1F6D\x399", U"\x1FAD"},
                                {0x1FA6, U"\x1F6E\x399", U"\x1FAE"},
                                {0x1FA7, U"\x1F6F\x399", U"\x1FAF"},
                                {0x1FA8, U"\x1F68\x399", U"\x1FA8"},
                                {0x1FA9, U"\x1F69\x399", U"\x1FA9"},
                                {0x1FAA, U"\x1F6A\x399", U"\x1FAA"},
                                {0x1FAB, U"\x1F6B\x399", U"\x1FAB"},
                                {0x1FAC, U"\x1F6C\x399", U"\x1FAC"},
                                {0x1FAD, U"\x1F6D\x399", U"\x1FAD"},
                                {0x1FAE, U"\x1F6E\x399", U"\x1FAE"},
                                {0x1FAF, U"\x1F6F\x399", U"\x1FAF"},
                                {0x1FB2, U"\x1FBA\x399", U"\x1FBA\x345"},
                                {0x1FB3, U"\x391\x399", U"\x1FBC"},
                                {0x1FB4, U"\x386\x399", U"\x386\x345"},
                                {0x1FB6, U"\x391\x342", U"\x391\x342"},
                                {0x1FB7, U"\x391\x342\x399", U"\x391\x342\x345"},
                                {0x1FBC, U"\x391\x399", U"\x1FBC"},
                                {0x1FC2, U"\x1FCA\x399", U"\x1FCA\x345"},
                                {0x1FC3, U"\x397\x399", U"\x1FCC"},
                                {0x1FC4, U"\x389\x399", U"\x389\x345"},
                                {0x1FC6, U"\x397\x342", U"\x397\x342"},
                                {0x1FC7, U"\x397\x342\x399", U"\x397\x342\x345"},
                                {0x1FCC, U"\x397\x399", U"\x1FCC"},
                                {0x1FD2, U"\x399\x308\x300", U"\x399\x308\x300"},
                                {0x1FD3, U"\x399\x308\x301", U"\x399\x308\x301"},
                                {0x1FD6, U"\x399\x342", U"\x399\x342"},
                                {0x1FD7, U"\x399\x308\x342", U"\x399\x308\x342"},
                                {0x1FE2, U"\x3A5\x308\x300", U"\x3A5\x308\x300"},
                                {0x1FE3, U"\x3A5\x308\x301", U"\x3A5\x308\x301"},
                                {0x1FE4, U"\x3A1\x313", U"\x3A1\x313"},
                                {0x1FE6, U"\x3A5\x342", U"\x3A5\x342"},
                                {0x1FE7, U"\x3A5\x308\x342", U"\x3A5\x308\x342"},
                                {0x1FF2, U"\x1FFA\x399", U"\x1FFA\x345"},
                                {0x1FF3, U"\x3A9\x399", U"\x1FFC"},
                                {0x1FF4, U"\x38F\x399", U"\x38F\x345"},
                                {0x1FF6, U"\x3A9\x342", U"\x3A9\x342"},
                                {0x1FF7, U"\x3A9\x342\x399", U"\x3A9\x342\x345"},
                                {0x1FFC, U"\x3A9\x399", U"\x1FFC"},
                                {0xFB00, U"\x46\x46", U"\x46\x66"},
                                {0xFB01, U"\x46\x49", U"\x46\x69"},
                                {0xFB02, U"\x46\x4C", U"\x46\x6C"},
                                {0xFB03, U"\x46\x46\x49", U"\x46\x66\x69"},
                                {0xFB04, U"\x46\x46\x4C", U"\x46\x66\x6C"},
                                {0xFB05, U"\x53\x54", U"\x53\x74"},
                                {0xFB06, U"\x53\x54", U"\x53\x74"},
                                {0xFB13, U"\x544\x546", U"\x544\x576"},
                                {0xFB14, U"\x544\x535", U"\x544\x565"},
                                {0xFB15, U"\x544\x53B", U"\x544\x56B"},
                                {0xFB16, U"\x54E\x546", U"\x54E\x576"},
                                {0xFB17, U"\x544\x53D", U"\x544\x56D"}};

void append_case(std::string& out, char32_t c, bool title) {
  const auto* end = std::end(kSeveral);
  const auto* it = std::lower_bound(std::begin(kSeveral), end, c,
                                    [](const Several& s, char32_t code) { return s.code < code; });
  if (it != end && it->code == c) {
    for (const char32_t* p = title ? it->title : it->upper; *p; ++p) append_utf8(out, *p);
    return;
  }
  append_utf8(out, simple(title ? utf8proc_totitle : utf8proc_toupper, c));
}

bool is_lower(char32_t c) {
  return simple(utf8proc_toupper, c) != c || category(c) == UTF8PROC_CATEGORY_LL;
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU;
}
bool is_title(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
}
bool is_cased(char32_t c) {
  return is_upper(c) || is_title(c) || is_lower(c);
}
bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == U'\'' || c == U'.' || c == U':' || c == 0xB7 || c == 0x387 || c == 0x55F ||
             c == 0x5F4 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027 ||
             c == 0xFE13 || c == 0xFE52 || c == 0xFE55 || c == 0xFF07 || c == 0xFF0E || c == 0xFF1A;
  }
}

// A sigma at the end of a word is another letter.
bool final_sigma(std::string_view text, size_t at) {
  size_t i = at;
  bool before = false;
  while (i > 0) {
    do --i;
    while (i > 0 && (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80);
    const char32_t c = decode_utf8(text, i).code;
    if (is_case_ignorable(c)) continue;
    before = is_cased(c);
    break;
  }
  if (!before) return false;
  for (i = at + decode_utf8(text, at).length; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (!is_case_ignorable(c.code)) return !is_cased(c.code);
    i += c.length;
  }
  return true;
}

void append_lower(std::string& out, std::string_view text, size_t at, char32_t c) {
  if (c == 0x130) {
    out += "i\xCC\x87";
  } else if (c == 0x3A3) {
    append_utf8(out, final_sigma(text, at) ? 0x3C2 : 0x3C3);
  } else {
    append_utf8(out, simple(utf8proc_tolower, c));
  }
}

bool line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

namespace {

bool strips(char32_t c, const std::optional<std::string_view>& chars) {
  if (!chars) return is_python_space(c);
  for (size_t i = 0; i < chars->size();) {
    const Utf8Char k = decode_utf8(*chars, i);
    if (k.code == c) return true;
    i += k.length;
  }
  return false;
}

}  // namespace

size_t strip_end(std::string_view text, std::optional<std::string_view> chars) {
  size_t end = text.size();
  while (end > 0) {
    size_t at = end - 1;
    while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
    if (!strips(decode_utf8(text, at).code, chars)) break;
    end = at;
  }
  return end;
}

size_t strip_begin(std::string_view text, std::optional<std::string_view> chars) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Char c = decode_utf8(text, at);
    if (!strips(c.code, chars)) break;
    at += c.length;
  }
  return at;
}

int64_t count_chars(std::string_view text) {
  int64_t n = 0;
  for (const char c : text) n += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return n;
}

int64_t byte_of_char(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at)
    if ((static_cast<uint8_t>(text[at]) & 0xC0) != 0x80 && index-- == 0) break;
  return static_cast<int64_t>(at);
}

std::vector<Span> split_text(std::string_view text, std::optional<std::string_view> separator,
                             int64_t most, bool from_right) {
  std::vector<Span> out;
  const auto size = static_cast<int64_t>(text.size());
  if (separator) {
    const auto width = static_cast<int64_t>(separator->size());
    if (!from_right) {
      int64_t begin = 0;
      while (most != 0) {
        const size_t at = text.find(*separator, static_cast<size_t>(begin));
        if (at == std::string_view::npos) break;
        out.push_back({begin, static_cast<int64_t>(at)});
        begin = static_cast<int64_t>(at) + width;
        --most;
      }
      out.push_back({begin, size});
      return out;
    }
    int64_t end = size;
    while (most != 0 && end >= width) {
      const size_t at = text.rfind(*separator, static_cast<size_t>(end - width));
      if (at == std::string_view::npos) break;
      out.push_back({static_cast<int64_t>(at) + width, end});
      end = static_cast<int64_t>(at);
      --most;
    }
    out.push_back({0, end});
    std::reverse(out.begin(), out.end());
    return out;
  }
  std::string_view rest = text;
  if (!from_right) {
    int64_t base = 0;
    for (;;) {
      const size_t skip = strip_begin(rest);
      base += static_cast<int64_t>(skip);
      rest.remove_prefix(skip);
      if (rest.empty()) return out;
      if (most == 0) {
        out.push_back({base, size});  // as it is, spaces at its end too
        return out;
      }
      size_t end = 0;
      while (end < rest.size()) {
        const Utf8Char c = decode_utf8(rest, end);
        if (is_python_space(c.code)) break;
        end += c.length;
      }
      out.push_back({base, base + static_cast<int64_t>(end)});
      base += static_cast<int64_t>(end);
      rest.remove_prefix(end);
      --most;
    }
  }
  for (;;) {
    rest = rest.substr(0, strip_end(rest));
    if (rest.empty()) break;
    if (most == 0) {
      out.push_back({0, static_cast<int64_t>(rest.size())});
      break;
    }
    size_t begin = rest.size();
    while (begin > 0) {
      size_t at = begin - 1;
      while (at > 0 && (static_cast<uint8_t>(rest[at]) & 0xC0) == 0x80) --at;
      if (is_python_space(decode_utf8(rest, at).code)) break;
      begin = at;
    }
    out.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(rest.size())});
    rest = rest.substr(0, begin);
    --most;
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<Span> split_lines(std::string_view text, bool keep_ends) {
  std::vector<Span> out;
  int64_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    size_t next = i + c.length;
    if (line_end(c.code)) {
      if (c.code == '\r' && next < text.size() && text[next] == '\n') ++next;
      out.push_back({begin, static_cast<int64_t>(keep_ends ? next : i)});
      begin = static_cast<int64_t>(next);
    }
    i = next;
  }
  if (begin < static_cast<int64_t>(text.size()))
    out.push_back({begin, static_cast<int64_t>(text.size())});
  return out;
}

const Text* text_case(Arena& arena, const Text& text, Case to) {
  TextBuilder out(arena);
  const std::string_view bytes = text.view();
  bool in_word = false, first = true;
  std::string piece;
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, i);
    piece.clear();
    const bool raise = to == Case::upper || (to == Case::swap && is_lower(c.code)) ||
                       (to == Case::title && !in_word) || (to == Case::capitalize && first);
    if (to == Case::swap && !is_lower(c.code) && !is_upper(c.code)) {
      piece = bytes.substr(i, c.length);
    } else if (raise) {
      append_case(piece, c.code, to == Case::title || to == Case::capitalize);
    } else {
      append_lower(piece, bytes, i, c.code);
    }
    out.append(piece, origin_at(text, static_cast<int64_t>(i)));
    in_word = is_cased(c.code);
    first = false;
    i += c.length;
  }
  return out.finish();
}

const Text* text_replace(Arena& arena, const Text& text, std::string_view from, const Text& to,
                         int64_t most) {
  const std::string_view bytes = text.view();
  TextBuilder out(arena);
  if (from.empty()) {  // before every character and at the end
    size_t i = 0;
    for (; most != 0; --most) {
      out.append(to);
      if (i >= bytes.size()) break;
      const size_t n = decode_utf8(bytes, i).length;
      out.append(text, static_cast<int64_t>(i), static_cast<int64_t>(i + n));
      i += n;
    }
    out.append(text, static_cast<int64_t>(i), text.size);
    return out.finish();
  }
  size_t begin = 0;
  for (; most != 0; --most) {
    const size_t at = bytes.find(from, begin);
    if (at == std::string_view::npos) break;
    out.append(text, static_cast<int64_t>(begin), static_cast<int64_t>(at));
    out.append(to);
    begin = at + from.size();
  }
  if (begin == 0) return &text;
  out.append(text, static_cast<int64_t>(begin), text.size);
  return out.finish();
}

std::vector<int64_t> slice_indices(int64_t size, std::optional<int64_t> start,
                                   std::optional<int64_t> stop, int64_t step) {
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto settle = [&](std::optional<int64_t> v, int64_t absent) {
    if (!v) return absent;
    return std::clamp(*v < 0 ? std::max(*v, -size - 1) + size : *v, low, high);
  };
  const int64_t begin = settle(start, step < 0 ? high : low);
  const int64_t end = settle(stop, step < 0 ? low : high);
  std::vector<int64_t> out;
  for (int64_t i = begin; step < 0 ? i > end : i < end;) {
    out.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return out;
}

const Text* text_slice(Arena& arena, const Text& text, std::optional<int64_t> start,
                       std::optional<int64_t> stop, int64_t step) {
  const std::string_view bytes = text.view();
  const int64_t chars = count_chars(bytes);
  if (step == 1) {
    const auto settle = [&](std::optional<int64_t> v, int64_t absent) {
      if (!v) return absent;
      return std::clamp(*v < 0 ? std::max(*v, -chars) + chars : *v, int64_t{0}, chars);
    };
    const int64_t begin = settle(start, 0), end = std::max(begin, settle(stop, chars));
    return cut_text(arena, text, byte_of_char(bytes, begin), byte_of_char(bytes, end));
  }
  arena.charge(8 * chars);
  std::vector<int64_t> at;
  for (size_t i = 0; i < bytes.size(); i += decode_utf8(bytes, i).length)
    at.push_back(static_cast<int64_t>(i));
  at.push_back(text.size);
  TextBuilder out(arena);
  for (const int64_t i : slice_indices(chars, start, stop, step))
    out.append(text, at[static_cast<size_t>(i)], at[static_cast<size_t>(i) + 1]);
  return out.finish();
}

std::optional<bool> text_is(std::string_view text, std::string_view name) {
  const auto all = [&](auto&& is) {
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text, i);
      if (!is(c.code)) return false;
      i += c.length;
    }
    return !text.empty();
  };
  const auto alpha = [](char32_t c) {
    return std::find(std::begin(kLetters), std::end(kLetters), category(c)) != std::end(kLetters);
  };
  const auto decimal = [](char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; };
  const auto digit = [&](char32_t c) {
    return decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) ||
           (c >= 0x2460 && c <= 0x2468) || (c >= 0x2474 && c <= 0x247C) ||
           (c >= 0x2488 && c <= 0x2490);
  };
  const auto numeric = [](char32_t c) { return char_class(c) == CharClass::number; };
  if (name == "isalpha") return all(alpha);
  if (name == "isdecimal") return all(decimal);
  if (name == "isdigit") return all(digit);
  if (name == "isnumeric") return all(numeric);
  if (name == "isalnum") return all([&](char32_t c) { return alpha(c) || numeric(c); });
  if (name == "isspace") return all(is_python_space);
  if (name == "isascii") return text.empty() || all([](char32_t c) { return c < 128; });
  if (name == "isupper" || name == "islower") {
    const bool upper = name == "isupper";
    bool some = false;
    const bool clean = text.empty() || all([&](char32_t c) {
                         if (is_title(c) || (upper ? is_lower(c) : is_upper(c))) return false;
                         some |= upper ? is_upper(c) : is_lower(c);
                         return true;
                       });
    return clean && some;
  }
  return std::nullopt;
}

}  // namespace snug::jinja
