// UTF-8 and the few Unicode facts the tokenizers need (unicode_table.h says of which version).
//
// A "maximal subpart" is the longest prefix of an ill-formed sequence that could still have become
// a character (The Unicode Standard, 3.9, "Substitution of Maximal Subparts"); Python's
// errors="replace" and Rust's from_utf8_lossy replace each of them by one U+FFFD, and so do we.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace snug {

struct Utf8Char {
  char32_t code = 0;   // U+FFFD when not valid
  uint8_t length = 0;  // bytes of the character, or of the maximal subpart when not valid
  bool valid = false;
  bool truncated = false;  // not valid only because the text ends here
};

// The character that starts at text[position]; position < text.size().
Utf8Char decode_utf8(std::string_view text, size_t position);

void append_utf8(std::string& out, char32_t code);

bool is_valid_utf8(std::string_view text);

// Each maximal subpart of an ill-formed sequence becomes U+FFFD; valid text is returned unchanged.
std::string sanitize_utf8(std::string_view text);

// For a person's terminal: sanitize_utf8, with control characters, which could move the cursor or
// change the terminal's state, spelled out as \x1b and \u009b; `kept`: except line breaks and tabs.
enum class LineBreaks { kept, shown };
std::string printable_utf8(std::string_view text, LineBreaks breaks);

// For messages: text_beginning (engine/io/text_reader.h), then sanitize_utf8.
std::string beginning_utf8(std::string_view text, size_t most);

// For streaming: the number of leading bytes that may be shown now. Only a last sequence that more
// bytes could still complete is held back (at most 3 bytes); bytes that can never become valid
// count as complete, so a stream never stalls on them.
size_t utf8_complete_prefix(std::string_view text);

// The classes of the GPT-2 pattern: \p{L}, \p{N}, \s (White_Space) and the rest.
enum class CharClass : uint8_t { other, letter, number, space };
CharClass char_class(char32_t code);

// White_Space, as \s means it in the engines tokenizers are trained with.
bool is_white_space(char32_t code);
// Alphabetic, marks, decimal numbers, connector punctuation and the two joiners: \w as Unicode's
// technical standard 18 defines it, which decides where single_word tokens may stand.
bool is_word_char(char32_t code);
// The lower case of one character, without regard to its neighbours. U+0130, whose lower case is
// two characters, is returned unchanged.
char32_t lower_char(char32_t code);
// Full case folding of one character; of U+00DF it is two.
std::u32string fold_case(char32_t code);

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };
// `text` is valid UTF-8. Throws Error (data) if the text cannot be normalised.
std::string normalize_utf8(std::string_view text, NormalForm form);

}  // namespace snug
