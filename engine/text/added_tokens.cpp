#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/text/unicode.h"

namespace snug {
namespace {

// The character that ends at `end` > 0, in valid UTF-8.
Utf8Char char_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return decode_utf8(text, begin);
}

}  // namespace

void AddedTokenMatcher::add(const AddedToken& token) {
  if (token.content.empty()) return;
  int32_t node = 0;
  for (const char c : token.content) {
    int32_t& next = edges_[pair_key(node, static_cast<uint8_t>(c))];
    if (next == 0) {  // node 0 is the root and nobody's child
      next = static_cast<int32_t>(token_of_node_.size());
      token_of_node_.push_back(-1);
    }
    node = next;
  }
  first_[static_cast<uint8_t>(token.content[0])] = true;
  token_of_node_[static_cast<size_t>(node)] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t position) const {
  const AddedToken* best = nullptr;
  int32_t node = 0;
  while (position < text.size()) {
    const int32_t* next = edges_.find(pair_key(node, static_cast<uint8_t>(text[position])));
    if (!next) break;
    node = *next;
    ++position;
    const int32_t token = token_of_node_[static_cast<size_t>(node)];
    if (token >= 0) best = &tokens_[static_cast<size_t>(token)];
  }
  return best;
}

void AddedTokenMatcher::cut(std::string_view text, std::vector<Part>& parts) const {
  size_t done = 0, position = 0;
  while (!tokens_.empty() && position < text.size()) {
    if (!first_[static_cast<uint8_t>(text[position])]) {
      ++position;
      continue;
    }
    const AddedToken* token = longest_at(text, position);
    if (!token) {
      ++position;
      continue;
    }
    size_t begin = position, end = position + token->content.size();
    position = end;
    if (token->single_word) {
      const bool left = begin > 0 && is_word_char(char_before(text, begin).code);
      const bool right = end < text.size() && is_word_char(decode_utf8(text, end).code);
      if (left || right) continue;
    }
    if (token->lstrip) {
      while (begin > done) {
        const Utf8Char c = char_before(text, begin);
        if (!is_white_space(c.code)) break;
        begin -= c.length;
      }
    }
    if (token->rstrip) {
      while (end < text.size()) {
        const Utf8Char c = decode_utf8(text, end);
        if (!is_white_space(c.code)) break;
        end += c.length;
      }
    }
    begin = std::max(begin, done);  // the token before may have taken white space up to here
    if (begin > done) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({text.substr(begin, end > begin ? end - begin : 0), token->id});
    done = end;  // of a token in white space that was taken: back within it, as Hugging Face goes
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
}

}  // namespace snug
