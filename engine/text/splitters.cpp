#include "engine/text/splitters.h"

#include <array>

#include "engine/core/error.h"
#include "engine/text/unicode.h"
#include "engine/text/unicode_table.h"

namespace snug {
namespace {

// What the patterns ask of a character. `upper` and `lower` are the two classes of o200k: title and
// upper case or small letters, each with the letters that have no case and the marks.
enum : uint8_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,
  kMarkBit = 8,
  kUpper = 16,
  kLower = 32,
  kNewline = 64,
};

uint8_t bits_of(Category category) {
  switch (category) {
    case Category::lu:
    case Category::lt:
      return kLetter | kUpper;
    case Category::ll:
      return kLetter | kLower;
    case Category::lm:
    case Category::lo:
      return kLetter | kUpper | kLower;
    case Category::mn:
    case Category::mc:
    case Category::me:
      return kMarkBit | kUpper | kLower;
    case Category::nd:
    case Category::nl:
    case Category::no:
      return kNumber;
    default:
      return 0;
  }
}

struct Tables {
  std::array<uint8_t, 128> ascii{};
  std::array<uint8_t, 256> kind{};  // by kind index
  const CharIndex& index = CharIndex::get();

  Tables() {
    for (int k = 0; k < kCharKindCount; ++k) {
      kind[static_cast<size_t>(k)] = bits_of(static_cast<Category>(kCharKinds[k] & 31));
    }
    for (char32_t c = 0; c < 128; ++c) {
      ascii[c] = is_white_space(c) ? uint8_t{kSpace} : kind[index.kind_index(c)];
    }
    ascii['\n'] = ascii['\r'] = kSpace | kNewline;
  }
  static const Tables& get() {
    static const Tables tables;
    return tables;
  }
};

// Reads characters of valid UTF-8 with their bits.
struct Reader {
  const Tables& tables;
  const char* text;
  size_t size;

  Reader(std::string_view s) : tables(Tables::get()), text(s.data()), size(s.size()) {}

  // The bits of the character at `at` < size; `next` is where the one after it starts.
  uint8_t bits(size_t at, size_t& next) const {
    const auto lead = static_cast<uint8_t>(text[at]);
    if (lead < 0x80) {
      next = at + 1;
      return tables.ascii[lead];
    }
    const auto tail = [&](size_t i) { return static_cast<char32_t>(text[at + i] & 0x3F); };
    char32_t code;
    if (lead < 0xE0) {
      next = at + 2;
      code = static_cast<char32_t>(lead & 0x1F) << 6 | tail(1);
    } else if (lead < 0xF0) {
      next = at + 3;
      code = static_cast<char32_t>(lead & 0x0F) << 12 | tail(1) << 6 | tail(2);
    } else {
      next = at + 4;
      code = static_cast<char32_t>(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
    }
    const uint8_t b = tables.kind[tables.index.kind_index(code)];
    return b == 0 && is_white_space(code) ? uint8_t{kSpace} : b;
  }
  // The end of the run of characters that have one of the bits (want) or none of them (!want).
  template <bool want>
  size_t run(size_t at, uint8_t any) const {
    size_t next = 0;
    while (at < size && ((bits(at, next) & any) != 0) == want) at = next;
    return at;
  }
  // The end of the run of these two bytes.
  size_t bytes(size_t at, char a, char b, char c) const {
    while (at < size && (text[at] == a || text[at] == b || text[at] == c)) ++at;
    return at;
  }
};

// 's 't 'm 'd 're 've 'll; 0 if none starts at the apostrophe. In any case U+017F folds to s.
template <bool any_case>
size_t contraction(const Reader& r, size_t at) {
  const auto letter = [&](size_t i) {
    const char c = at + i < r.size ? r.text[at + i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    case '\xC5':
      return any_case && letter(2) == '\xBF' ? 3 : 0;
    default:
      return 0;
  }
}

// \s+(?!\S)|\s+ : white space before a word leaves its last character to that word, unless it is
// the only one.
size_t gpt2_space_end(const Reader& r, size_t at) {
  size_t last = at, end = at, next = 0;
  while (end < r.size) {
    if (!(r.bits(end, next) & kSpace)) return last > at ? last : end;
    last = end;
    end = next;
  }
  return end;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ : the same, but up to the last line break if there is one.
size_t space_end(const Reader& r, size_t at) {
  size_t last = at, end = at, next = 0, line = 0;
  while (end < r.size) {
    const uint8_t bits = r.bits(end, next);
    if (!(bits & kSpace)) {
      if (line > 0) return line;
      return last > at ? last : end;
    }
    if (bits & kNewline) line = next;
    last = end;
    end = next;
  }
  return line > 0 ? line : end;
}

size_t end_gpt2(std::string_view text, size_t at) {
  const Reader r(text);
  if (text[at] == '\'') {
    if (const size_t n = contraction<false>(r, at)) return at + n;
  }
  size_t next = 0;
  uint8_t first = r.bits(at, next);
  if (text[at] == ' ' && next < r.size) {
    size_t second = 0;
    const uint8_t bits = r.bits(next, second);
    if (!(bits & kSpace)) {
      first = bits;
      next = second;
    }
  }
  if (first & kSpace) return gpt2_space_end(r, at);
  if (first & kLetter) return r.run<true>(next, kLetter);
  if (first & kNumber) return r.run<true>(next, kNumber);
  return r.run<false>(next, kSpace | kLetter | kNumber);
}

template <int digits>
size_t number_end(const Reader& r, size_t next) {
  for (int i = 1; i < digits && next < r.size; ++i) {
    size_t after = 0;
    if (!(r.bits(next, after) & kNumber)) break;
    next = after;
  }
  return next;
}

// Llama 3 (three digits), Qwen2 (one), Qwen3.5 (marks are letters).
template <int digits, bool marks>
size_t end_llama(std::string_view text, size_t at) {
  constexpr uint8_t letters = marks ? kLetter | kMarkBit : kLetter;
  const Reader r(text);
  if (text[at] == '\'') {
    if (const size_t n = contraction<true>(r, at)) return at + n;
  }
  size_t next = 0, after = 0;
  const uint8_t first = r.bits(at, next);
  if (first & letters) return r.run<true>(next, letters);
  if (first & kNumber) return number_end<digits>(r, next);
  const uint8_t second = next < r.size ? r.bits(next, after) : uint8_t{kSpace};
  if (!(first & kNewline) && (second & letters)) return r.run<true>(after, letters);
  constexpr uint8_t stop = kSpace | kNumber | letters;
  if (!(first & kSpace)) return r.bytes(r.run<false>(next, stop), '\r', '\n', '\n');
  if (text[at] == ' ' && !(second & stop)) {
    return r.bytes(r.run<false>(after, stop), '\r', '\n', '\n');
  }
  return space_end(r, at);
}

// [upper]*[lower]+ or [upper]+[lower]*, then a contraction: the letters of o200k from `at` on.
// Returns `at` if there are none.
size_t o200k_letters(const Reader& r, size_t at) {
  size_t end = at, next = 0, both = at;  // both: the end of the last character of the two classes
  uint8_t bits = 0;
  while (end < r.size && ((bits = r.bits(end, next)) & kUpper)) {
    end = next;
    if (bits & kLower) both = next;
  }
  if (end < r.size && (bits & kLower)) {
    end = r.run<true>(next, kLower);
  } else if (both > at) {
    end = both;  // [lower]+ takes the last character that [upper]* can give back
  }
  if (end == at) return at;
  if (end < r.size && r.text[end] == '\'') end += contraction<true>(r, end);
  return end;
}

size_t end_o200k(std::string_view text, size_t at) {
  const Reader r(text);
  size_t next = 0, after = 0;
  const uint8_t first = r.bits(at, next);
  // A mark may also lead a word as any other character does; the piece ends at the same place.
  if (first & (kLetter | kMarkBit)) return o200k_letters(r, at);
  if (first & kNumber) return number_end<3>(r, next);
  if (!(first & kNewline)) {
    const size_t end = o200k_letters(r, next);
    if (end > next) return end;
  }
  constexpr uint8_t stop = kSpace | kNumber | kLetter;
  if (!(first & kSpace)) return r.bytes(r.run<false>(next, stop), '\r', '\n', '/');
  if (text[at] == ' ' && next < r.size && !(r.bits(next, after) & stop)) {
    return r.bytes(r.run<false>(after, stop), '\r', '\n', '/');
  }
  return space_end(r, at);
}

struct Known {
  KnownPattern which;
  std::string_view pattern;
  KnownSplitter::EndFunction end;
};
constexpr Known kKnown[] = {
    {KnownPattern::gpt2,
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", end_gpt2},
    {KnownPattern::llama3,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     end_llama<3, false>},
    {KnownPattern::qwen2,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     end_llama<1, false>},
    {KnownPattern::qwen35,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     end_llama<1, true>},
    {KnownPattern::o200k,
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     end_o200k},
};

const Known& entry(KnownPattern which) {
  for (const Known& k : kKnown) {
    if (k.which == which) return k;
  }
  require(false, "a known split pattern");
  return kKnown[0];
}

}  // namespace

std::string_view pattern_of(KnownPattern which) {
  return which == KnownPattern::none ? std::string_view() : entry(which).pattern;
}

KnownPattern known_pattern(std::string_view pattern) {
  for (const Known& k : kKnown) {
    if (k.pattern == pattern) return k.which;
  }
  return KnownPattern::none;
}

size_t split_known(KnownPattern which, std::string_view text, size_t position) {
  return entry(which).end(text, position);
}

KnownSplitter::KnownSplitter(KnownPattern which) : end_(entry(which).end) {}

}  // namespace snug
