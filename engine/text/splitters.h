// Hand-written twins of the split patterns that most byte-level vocabularies were trained with: the
// same pieces as the pattern gives in Hugging Face `tokenizers`, several times faster than a
// regular expression. Tests compare them with the patterns run by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace snug {

enum class KnownPattern : uint8_t { none, gpt2, llama3, qwen2, qwen35, o200k };

// The patterns as tokenizer files spell them; empty for none. gpt2: GPT-2, RoBERTa, GPT-NeoX.
// llama3: Llama 3 and other descendants of cl100k. qwen2: Qwen2 to Qwen3, one digit a piece.
// qwen35: Qwen3.5, marks count as letters. o200k: GPT-4o, GPT-OSS.
std::string_view pattern_of(KnownPattern which);
KnownPattern known_pattern(std::string_view pattern);

// End of the piece that starts at `position`. `text` is valid UTF-8, position < text.size(),
// `which` is not none. Every character belongs to a piece; no piece is empty.
size_t split_known(KnownPattern which, std::string_view text, size_t position);

// Calls f(piece) for all pieces of `text`, in order.
class KnownSplitter {
 public:
  using EndFunction = size_t (*)(std::string_view text, size_t position);
  explicit KnownSplitter(KnownPattern which);
  template <class F>
  void operator()(std::string_view text, F&& f) const {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = end_(text, begin);
      f(text.substr(begin, end - begin));
      begin = end;
    }
  }
  size_t end(std::string_view text, size_t position) const { return end_(text, position); }

 private:
  EndFunction end_;
};

}  // namespace snug
