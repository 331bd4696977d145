// Tokenizers: text to token ids and back, equal to Hugging Face `tokenizers`. Models: BPE over
// bytes (GPT-2, Llama 3, Qwen, o200k) and over characters (Llama 2, Gemma), WordPiece (BERT),
// Unigram (T5, XLM-R) and WordLevel.
//
// A Tokenizer is immutable; copies share it, and all functions may be called by many threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/post_processor.h"

namespace snug {

struct TokenizerSpec;  // engine/text/tokenizer_spec.h

class Tokenizer {
 public:
  // A tokenizer.json file under any name; a folder that holds tokenizer.json; or a folder with
  // vocab.json and merges.txt (GPT-2 and Qwen2 forms) or with vocab.txt (BERT form), read as the
  // class that tokenizer_config.json or config.json names; unsupported for other classes. For
  // folders, and for a file named tokenizer.json, special tokens and the roles (eos, bos, pad, unk)
  // come from the files beside it too, as in transformers 5 (special_tokens.h). Where no file gives
  // eos or bos, "<|endoftext|>" takes the role if the vocabulary has it. Throws Error: data for
  // broken files, unsupported for components we do not have.
  static Tokenizer load(const std::filesystem::path& path);

  // Checks and freezes what a loader or the trainer put together. Throws Error (data, unsupported).
  static Tokenizer build(TokenizerSpec spec);

  // Writes tokenizer.json, tokenizer_config.json and, of BPE, vocab.json and merges.txt, of
  // WordPiece vocab.txt, each under a temporary name first, so that
  // AutoTokenizer.from_pretrained(folder) gives the same ids. Makes the folder. `longest`, if above 0:
  // tokens that the model takes at most, model_max_length unless that says less already.
  void save(const std::filesystem::path& folder, int64_t longest = 0) const;
  // One tokenizer.json file. The roles are not part of that format: see load.
  void save_json(const std::filesystem::path& file) const;

  // Added tokens are cut out of the text first, special ones too; then normalisation, splitting and
  // merges. Nothing is put around the text: no bos, no eos, no template of a post-processor, no
  // truncation. Ill-formed UTF-8 is read as sanitize_utf8 leaves it (U+FFFD for each maximal
  // subpart, as Python's errors="replace"). Throws Error (data) only if a split pattern from the
  // file exceeds the regex engine's limits; `out` is then as before.
  void encode(std::string_view text, std::vector<int32_t>& out) const;
  std::vector<int32_t> encode(std::string_view text) const;
  // The same, but for a word of more than max_word bytes (what the splitting leaves in one piece,
  // whose merges take up to kWordBytes times its bytes): then its length, and `out` as before. Else
  // 0.
  int64_t encode(std::string_view text, std::vector<int32_t>& out, int64_t max_word) const;
  static constexpr int64_t kWordBytes = 56;

  // True if a long text may be given in pieces, cut as piece_cuts.h says: their ids, one after the
  // other, are those of the whole. Not so where something is put at the start of a text (Prepend,
  // add_prefix_space, Metaspace), taken from its ends (Strip, lstrip, rstrip), or where no step
  // before the model surely splits there, as in SentencePiece models and patterns of one's own.
  bool safe_in_pieces() const;

  // The same for many documents, on up to `threads` threads; the result does not depend on them.
  std::vector<std::vector<int32_t>> encode_batch(std::span<const std::string_view> documents,
                                                 int threads) const;

  // Puts the special tokens around that the post-processor of the file asks for ([CLS] A [SEP]).
  TokenSequence with_special_tokens(std::span<const int32_t> a) const;
  TokenSequence with_special_tokens(std::span<const int32_t> a, std::span<const int32_t> b) const;

  // Of byte-level models: the bytes of the tokens, joined; nothing is replaced, so the result may
  // end inside a character (utf8_complete_prefix, sanitize_utf8). Of the others: what the decoder
  // of the file makes of the tokens. Ids outside the vocabulary give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  // Bytes of one token in the middle of a text (" the", "ing"); empty outside the vocabulary. Valid
  // as long as a copy of the tokenizer.
  std::string_view token_bytes(int32_t id) const;
  // The token as vocabulary files write it ("Ġthe"); empty outside the vocabulary.
  std::string_view token_text(int32_t id) const;
  // The reverse of token_text.
  std::optional<int32_t> token_to_id(std::string_view token_text) const;
  bool is_special(int32_t id) const;

  // The largest id plus one: the rows an embedding needs. Ids may have gaps.
  int64_t vocab_size() const;
  // Merges that were kept: tells after training whether the corpus had enough of them.
  int64_t merge_count() const;

  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;

  // A hash of all that decides ids: vocabulary, merges, added tokens, normaliser, splitting. Equal
  // on every machine and for every spelling of the same tokenizer; roles and file names do not
  // count.
  uint64_t fingerprint() const;

  // The parts it was made of.
  const TokenizerSpec& spec() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  void encode_words(std::string_view text, std::vector<int32_t>& out, int64_t max_word) const;
  std::shared_ptr<const Impl> impl_;
};

// True for a folder with a file that Tokenizer::load reads: tokenizer.json, vocab.json or
// vocab.txt. (Of vocab.json without merges.txt load says what is missing.)
bool holds_tokenizer(const std::filesystem::path& folder);

}  // namespace snug
