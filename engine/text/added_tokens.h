// Added and special tokens: cut out of the text before it is split into words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/flat_map.h"

namespace snug {

// One entry of `added_tokens` in tokenizer.json; the names are those of the file.
struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // only where no letter, digit or underscore touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for after normalisation instead of before
  bool special = false;      // not part of the text a person reads
};

// Finds the tokens of a set: leftmost first, the longest where several start at one place.
class AddedTokenMatcher {
 public:
  // Longer tokens are refused by Tokenizer::build: the time to cut a text is its length times the
  // longest token.
  static constexpr size_t kMaxBytes = 1024;

  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  struct Part {
    std::string_view text;
    int32_t id;  // -1: ordinary text
  };
  // Cuts `text` (valid UTF-8) into tokens and the ordinary text between them; no part is empty
  // text. White space taken by lstrip or rstrip belongs to the token.
  void cut(std::string_view text, std::vector<Part>& parts) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t position) const;

  std::vector<AddedToken> tokens_;
  // A trie: (node, byte) -> node; nodes that end a token name it.
  FlatMap64<int32_t> edges_;
  std::vector<int32_t> token_of_node_{-1};
  std::array<bool, 256> first_{};  // bytes a token can start with
};

}  // namespace snug
