// The byte-level alphabet of GPT-2: one printable character for every byte, so that vocabulary
// files hold no blanks or control characters. Bytes 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for
// themselves (as code points); the other 68, in order, become U+0100, U+0101, ... (space is
// U+0120).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace snug {

char32_t byte_to_char(uint8_t byte);
// Nothing for a character outside the alphabet.
std::optional<uint8_t> char_to_byte(char32_t code);

// Raw bytes -> their characters in UTF-8.
std::string bytes_to_alphabet(std::string_view bytes);
// The reverse; nothing if a character is outside the alphabet or the text is not valid UTF-8.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace snug
