// A tokenizer as the keys tokenizer.ggml.* of a GGUF file: byte-level BPE, or BPE over characters that
// falls back to bytes, as SentencePiece's.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/io/gguf.h"
#include "engine/text/tokenizer.h"
#include "layers/parts/spec.h"

namespace snug {

// llama.cpp's name of a byte-level tokenizer's splitting rule: gpt-2, smollm, llama-bpe, dbrx, qwen2,
// gpt-4o or tekken; empty if it is none of these, because of its pattern or of a space put before the
// text.
std::string gguf_splitting_rule(const Tokenizer& tokenizer);

// What llama.cpp does under such a name, of those above.
struct GgufSplitting {
  bool known = false;
  bool whole_words = false;  // takes words of the vocabulary before any merge (ignore_merges)
  bool ascii_case = false;   // splits by the case of ASCII letters where the rule means all
};
GgufSplitting gguf_splitting_of(std::string_view name);

// A tokenizer like SentencePiece's BPE as llama.cpp runs it: of two neighbours whose joined text is a
// token the best goes first, by the token's score.
struct GgufPieces {
  std::vector<float> scores;  // by id: minus the rank of the token
  bool space_before = false;  // a text begins with a space (add_space_prefix)
  // llama.cpp puts one behind special tokens as well, and before a text that begins with a space.
  bool again_after = true, always = true;
};
// Throws unsupported, with the reason, if merges, normaliser or splitting are others.
GgufPieces gguf_pieces_of(const Tokenizer& tokenizer);

// A component of a tokenizer's file, which was checked when the tokenizer was built.
nlohmann::json gguf_component(const std::string& text);

// Whether such a tokenizer writes a byte so: <0x0A>.
bool is_byte_token(std::string_view text);

// What llama.cpp makes of the special tokens by general.name, for lack of a key: notes. Throws usage on a
// name for which it looks for tokens that are not there, and then reads no file.
std::vector<std::string> check_gguf_name(const Tokenizer& tokenizer, const std::string& name);

// Adds model, pre, tokens, token types, merges or scores, the ids of the roles, add_bos_token and, if
// true, add_eos_token. `model` says how many ids there are, those without a token become [PADi], unused;
// and which ends a text or begins one where the tokenizer has none. Of the tokens that end a text one is
// eos, the next eot and eom. `pre` is the splitting rule to name; empty: the tokenizer's. `folder` is
// for errors, stop tokens and its chat template. Returns notes for the user. Throws unsupported if the
// tokenizer has no rule with a name and none was given, or if it changes text in a way that readers of
// GGUF do not.
std::vector<std::string> add_gguf_tokenizer(const Tokenizer& tokenizer, const ModelSpec& model,
                                            const std::string& pre, const std::string& folder,
                                            GgufMetadata& out);

}  // namespace snug
