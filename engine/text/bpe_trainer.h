// Trains a byte-level BPE or a WordPiece tokenizer. BPE: the merges are those of Hugging Face
// `tokenizers` (BpeTrainer with the ByteLevel alphabet, add_prefix_space=false, use_regex=true) on
// the same corpus: the pair with the highest count first, the smaller pair of ids among equals.
// Ids: special tokens, then the 256 bytes in the order of their characters, then one for each new
// merge.
//
// WordPiece: the same on the characters of words as BERT splits them (BertNormalizer,
// BertPreTokenizer), those inside a word written "##x", as WordPieceTrainer does. Ids: special
// tokens, the characters, the characters inside words, both by code point, then merges. The library
// numbers the second kind in the order of a hash table, so its ids, and the choice among pairs of
// equal counts, differ from run to run; ours do not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/normalizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/word_counts.h"

namespace snug {

enum class TrainedModel : uint8_t { bpe, word_piece };

struct BpeTrainerOptions {
  int64_t vocab_size = 30000;  // specials and bytes included
  int64_t min_frequency = 0;   // pairs seen less often are not merged
  // BPE: the first is eos and bos. WordPiece wants those of BERT, see bert_special_tokens.
  std::vector<std::string> special_tokens{"<|endoftext|>"};
  TrainedModel model = TrainedModel::bpe;
  // WordPiece only.
  bool lowercase = true;          // and accents stripped with it, as BERT's uncased models
  int64_t limit_alphabet = 1000;  // the most frequent characters; others make a word unknown
  // Called now and then with the vocabulary reached and the one wanted.
  std::function<void(int64_t done, int64_t wanted)> progress = {};
};

// [PAD] [UNK] [CLS] [SEP] [MASK]
std::vector<std::string> bert_special_tokens();

class BpeTrainer {
 public:
  // Throws Error (usage) if the options cannot give a tokenizer: vocab_size below 256 plus the
  // special tokens (WordPiece: below the special tokens plus one), special tokens without [UNK],
  // [CLS] and [SEP] for WordPiece, or special tokens that are empty, not UTF-8 or repeated.
  explicit BpeTrainer(BpeTrainerOptions options);

  // Counts the words of one document. Words do not cross from one call to the next, so where a text
  // is cut matters at white space. Ill-formed UTF-8 is read as sanitize_utf8 leaves it. Special
  // tokens in the text are counted as ordinary text.
  void feed(std::string_view document);
  // The same for many documents on up to `threads` threads; the counts do not depend on them.
  void feed_batch(std::span<const std::string_view> documents, int threads);
  // A file line by line, each with its line end, as `tokenizers` trains from files. Memory: one
  // line. Throws Error (data) if it cannot be read.
  void feed_file(const std::filesystem::path& path);
  // A word counted elsewhere: raw bytes, not split again.
  void add_word(std::string_view word, int64_t count);

  int64_t distinct_words() const { return counter_.words.size(); }

  // Learns the merges. A corpus with too few pairs gives a smaller vocabulary: compare
  // vocab_size() of the result with the one asked for. May be called again after more text.
  Tokenizer train() const;

 private:
  // What one thread counts with.
  struct Counter {
    WordCounts words;
    RegexScratch scratch;
  };
  void count(std::string_view document, Counter& counter) const;
  Tokenizer train_bpe() const;
  Tokenizer train_word_piece() const;

  BpeTrainerOptions options_;
  Normalizer normalizer_;
  PreTokenizer splitter_;
  Counter counter_;
};

// All in one: every element of `documents` is fed, then trained.
Tokenizer train_bpe(const std::vector<std::string_view>& documents, BpeTrainerOptions options);

}  // namespace snug
