// Models that turn one word into ids other than by byte-pair merges of bytes: WordPiece (BERT),
// Unigram (SentencePiece; Kudo 2018) and WordLevel. All read-only after construction; the ids are
// those of Hugging Face `tokenizers`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/bpe_model.h"
#include "engine/text/flat_map.h"

namespace snug {

// The longest prefixes of a text that are in a set of strings.
class PrefixTree {
 public:
  void add(std::string_view key, int32_t value);
  // f(length, value) for every key that `text` starts with, shortest first.
  template <class F>
  void for_each_prefix(std::string_view text, F&& f) const {
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t* next = edges_.find(pair_key(node, static_cast<uint8_t>(text[i])));
      if (!next) return;
      node = *next;
      const int32_t value = values_[static_cast<size_t>(node)];
      if (value >= 0) f(i + 1, value);
    }
  }

 private:
  FlatMap64<int32_t> edges_;
  std::vector<int32_t> values_{-1};
};

// A word is cut from the left into the longest pieces of the vocabulary; pieces after the first
// carry the prefix ("##"). A word that cannot be cut, or has too many characters, is one unk.
class WordPieceModel : public WordModel {
 public:
  // Longer limits than this are refused by the loader: time is characters times longest piece.
  static constexpr int64_t kMaxChars = 4096;
  WordPieceModel(const StringMap<int32_t>& vocab, std::string_view prefix, int64_t max_chars,
                 std::optional<int32_t> unk);
  void encode_word(std::string_view word, WordScratch& scratch,
                   std::vector<int32_t>& out) const override;

 private:
  PrefixTree first_, later_;
  size_t max_chars_;
  std::optional<int32_t> unk_;
};

// The cut of the highest sum of scores, by dynamic programming from left to right; the first found
// wins among equals. A character no piece covers costs the least score less 10, and neighbours of
// that kind are one unk, or their bytes if the vocabulary has all of them (byte_fallback).
class UnigramModel : public WordModel {
 public:
  // Longer pieces are refused by the loader: time is bytes times longest piece.
  static constexpr size_t kMaxPiece = 1024;
  struct Piece {
    std::string text;
    double score = 0;
  };
  // pieces: the id of each is its index; of equal texts the last counts.
  UnigramModel(const std::vector<Piece>& pieces, std::optional<int32_t> unk, bool byte_fallback);
  void encode_word(std::string_view word, WordScratch& scratch,
                   std::vector<int32_t>& out) const override;

 private:
  void push(std::string_view text, std::vector<int32_t>& out) const;

  StringMap<int32_t> ids_;
  PrefixTree tree_;
  std::vector<double> scores_;
  std::array<int32_t, 256> bytes_{};
  double unk_score_ = 0;
  std::optional<int32_t> unk_;
  bool byte_fallback_ = false;
};

// A word is in the vocabulary or it is unk.
class WordLevelModel : public WordModel {
 public:
  WordLevelModel(StringMap<int32_t> vocab, std::optional<int32_t> unk)
      : vocab_(std::move(vocab)), unk_(unk) {}
  void encode_word(std::string_view word, WordScratch& scratch,
                   std::vector<int32_t>& out) const override;

 private:
  StringMap<int32_t> vocab_;
  std::optional<int32_t> unk_;
};

// A decimal number as the JSON reader of `tokenizers` (serde_json) gives it: all digits as one
// integer, times or over a power of ten, two roundings instead of one. Scores that are off by one
// bit decide which of two cuts of equal probability wins.
double score_as_read(double value);

// The ids of the tokens <0x00> to <0xFF>, -1 where there is none.
std::array<int32_t, 256> byte_token_ids(const StringMap<int32_t>& vocab);

}  // namespace snug
