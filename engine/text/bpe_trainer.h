// Trains a byte-level BPE tokenizer. The merges are those of Hugging Face `tokenizers` (BpeTrainer
// with the ByteLevel alphabet, add_prefix_space=false, use_regex=true) on the same corpus: the pair
// with the highest count first, the smaller pair of ids among equals. Ids: special tokens, then the
// 256 bytes in the order of their characters, then one for each new merge.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/bpe_model.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"

namespace snug {

struct BpeTrainerOptions {
  int64_t vocab_size = 30000;                                // specials and bytes included
  int64_t min_frequency = 0;                                 // pairs seen less often are not merged
  std::vector<std::string> special_tokens{"<|endoftext|>"};  // the first is eos and bos
  // Called now and then with the vocabulary reached and the one wanted.
  std::function<void(int64_t done, int64_t wanted)> progress = {};
};

class BpeTrainer {
 public:
  // Throws Error (usage) if the options cannot give a tokenizer: vocab_size below 256 plus the
  // special tokens, or special tokens that are empty, not UTF-8 or repeated.
  explicit BpeTrainer(BpeTrainerOptions options);

  // Counts the words of one document. Words do not cross from one call to the next, so where a text
  // is cut matters at white space. Ill-formed UTF-8 is read as sanitize_utf8 leaves it. Special
  // tokens in the text are counted as ordinary text.
  void feed(std::string_view document);
  // A file line by line, each with its line end, as `tokenizers` trains from files. Memory: one
  // line. Throws Error (data) if it cannot be read.
  void feed_file(const std::filesystem::path& path);
  // A word counted elsewhere: raw bytes, not split again.
  void add_word(std::string_view word, int64_t count);

  int64_t distinct_words() const { return static_cast<int64_t>(words_.size()); }

  // Learns the merges. A corpus with too few pairs gives a smaller vocabulary: compare
  // vocab_size() of the result with the one asked for. May be called again after more text.
  Tokenizer train() const;

 private:
  BpeTrainerOptions options_;
  StringMap<int64_t> words_;
  PreTokenizer splitter_;
  RegexScratch scratch_;
};

// All in one: every element of `documents` is fed, then trained.
Tokenizer train_bpe(const std::vector<std::string_view>& documents, BpeTrainerOptions options);

}  // namespace snug
