#include "engine/text/byte_alphabet.h"

#include <array>

#include "engine/text/unicode.h"

namespace snug {
namespace {

struct Alphabet {
  std::array<char32_t, 256> chars{};
  std::array<int16_t, 0x144> bytes{};  // U+0143 is the last character in use; -1: none

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      chars[static_cast<size_t>(b)] = printable ? static_cast<char32_t>(b) : next++;
      bytes[chars[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet a;
  return a;
}

}  // namespace

char32_t byte_to_char(uint8_t byte) {
  return alphabet().chars[byte];
}

std::optional<uint8_t> char_to_byte(char32_t code) {
  const auto& table = alphabet().bytes;
  if (code >= table.size() || table[code] < 0) return std::nullopt;
  return static_cast<uint8_t>(table[code]);
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char b : bytes) append_utf8(out, byte_to_char(static_cast<uint8_t>(b)));
  return out;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const Utf8Char c = decode_utf8(text, position);
    const auto byte = c.valid ? char_to_byte(c.code) : std::nullopt;
    if (!byte) return std::nullopt;
    out += static_cast<char>(*byte);
    position += c.length;
  }
  return out;
}

}  // namespace snug
