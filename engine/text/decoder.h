// Tokens -> text, as a chain of steps on a list of strings that are joined at the end; the meaning
// of each step is that of Hugging Face `tokenizers`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/regex.h"

namespace snug {

class Decoder {
 public:
  static constexpr size_t kMaxSteps = 64;

  void add_byte_level();  // characters of the byte alphabet -> bytes, all tokens joined
  void add_word_piece(std::string_view prefix, bool cleanup);
  void add_metaspace(std::string_view replacement, bool drop_first);
  void add_byte_fallback();  // <0x41> -> a byte; bytes that make no character become U+FFFD each
  void add_fuse();
  void add_strip(std::string_view character, int64_t start, int64_t stop);
  void add_replace(std::string_view literal, std::string_view content);
  void add_replace_pattern(std::string_view pattern, std::string_view content,
                           std::string_view where);
  void add_bpe(std::string_view suffix);  // the end-of-word suffix becomes a space

  bool empty() const { return steps_.empty(); }
  // Nothing but ByteLevel and Fuse: decoding is joining the bytes of the tokens.
  bool bytes_only() const;
  // Without steps the tokens are joined by spaces. Throws Error (data) if the text, or what it is
  // on the way, exceeds max_bytes (text_bound.h of all tokens), and as Regex::find does.
  std::string apply(std::vector<std::string> tokens, size_t max_bytes) const;
  std::string apply(std::vector<std::string> tokens) const;

 private:
  enum class Kind {
    byte_level,
    word_piece,
    metaspace,
    byte_fallback,
    fuse,
    strip,
    replace,
    pattern,
    bpe
  };
  struct Step {
    Kind kind;
    std::string text = {}, content = {};
    bool flag = false;
    int64_t start = 0, stop = 0;
    std::shared_ptr<const Regex> regex = {};
  };
  void add(Step step);
  static void run(const Step& step, std::vector<std::string>& tokens, size_t max_bytes);

  std::vector<Step> steps_;
};

// The byte a token such as <0x0A> stands for, -1 for any other token.
int byte_of_token(std::string_view token);

}  // namespace snug
