// Masked language modelling (Devlin et al., "BERT", 2019, section 3.1): which tokens of a row are
// hidden, and what stands in their place. A token is a target with probability p, special ones
// never; of the targets 80 % become the mask token, 10 % any id of the vocabulary, 10 % stay, as
// transformers' DataCollatorForLanguageModeling has it. A row may have no target.
//
// What becomes of position t of sample k is a function of (seed, k, t) and, with whole words, of the
// row: Philox (engine/core/rng.h), so that no batch, packing or resume changes it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/rng.h"
#include "engine/text/tokenizer.h"

namespace snug {

struct MaskingOptions {
  double probability = 0.15;                    // (0, 1]
  double mask_share = 0.8, random_share = 0.1;  // of the targets; together at most 1
  int32_t mask_id = -1;                         // in [0, vocab_size)
  int64_t vocab_size = 0;
  std::vector<bool> special = {};  // by id: never a target; missing at the end: no
  // By id: continues the word of the token before it ("##ing"). Empty: tokens are chosen one by one;
  // else words are, with all their tokens. A special token ends a word.
  std::vector<bool> continues = {};
};

// The tables of a tokenizer: what is special, and what continues a word: tokens with the prefix of
// WordPiece; of byte-level BPE and of SentencePiece those that do not begin with a blank.
std::vector<bool> special_tokens(const Tokenizer& tokenizer);
std::vector<bool> word_continuations(const Tokenizer& tokenizer);

class TokenMasking {
 public:
  // Throws usage for shares or ids out of range. `evaluation`: other draws than training's.
  TokenMasking(MaskingOptions options, uint64_t seed, bool evaluation);

  // Masks tokens [0, length) of sample k in place: targets[t] becomes the original id of a target,
  // -100 of the others. At most `most` targets, those at the front; later ones are left as they
  // were. Returns their number. Takes no memory.
  int64_t apply(int64_t k, int64_t length, int64_t most, int32_t* tokens, int32_t* targets) const;

 private:
  bool is(const std::vector<bool>& table, int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < table.size() && table[static_cast<size_t>(id)];
  }
  MaskingOptions options_;
  RandomKey key_;
};

}  // namespace snug
