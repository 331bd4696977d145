// Everything a tokenizer is made of, as plain data: what loaders and the trainers fill in,
// Tokenizer::build checks and freezes, and save writes out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe_model.h"

namespace snug {

enum class ModelType : uint8_t { bpe, word_piece, unigram, word_level };

struct TokenizerSpec {
  ModelType model = ModelType::bpe;
  // The model: token text as files write it (in the byte-level alphabet, if the pre-tokenizer is
  // ByteLevel) -> id, and of BPE the merges in rank order as pairs of ids whose joined text is in
  // the vocabulary.
  StringMap<int32_t> vocab;
  std::vector<std::array<int32_t, 2>> merges;
  std::vector<AddedToken> added;
  std::string unk_token;  // empty: none
  bool fuse_unk = false;
  bool ignore_merges = false;
  // Not of byte-level models: what marks a piece inside a word ("##") and one at its end ("</w>"),
  // and whether unknown characters become tokens such as <0xEC>.
  std::string continuing_prefix, end_suffix;
  bool byte_fallback = false;
  int64_t max_word_chars = 100;  // WordPiece: longer words are unk
  std::vector<double> scores;    // Unigram: by id

  // Components as JSON text in the form of tokenizer.json.
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  std::string post_processor = "null";
  std::string decoder =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  // Kept for the file only: encode neither truncates nor pads.
  std::string truncation = "null";
  std::string padding = "null";

  // tokenizer_config.json: an object; the roles below win over it.
  std::string config = "{}";
  std::optional<std::string> eos_token, bos_token, pad_token, unk_role;

  std::string origin = "the tokenizer";  // file or maker, for messages
};

}  // namespace snug
