// A byte-level BPE tokenizer as the keys tokenizer.ggml.* of a GGUF file.
#pragma once

#include <string>
#include <vector>

#include "engine/io/gguf.h"
#include "engine/text/tokenizer.h"
#include "layers/parts/spec.h"

namespace snug {

// llama.cpp's name of the tokenizer's splitting rule: gpt-2, llama-bpe, qwen2 or gpt-4o; empty if
// it is none of these, because of its pattern or of a space put before the text.
std::string gguf_splitting_rule(const Tokenizer& tokenizer);

// Adds model, pre, tokens, token types, merges, the ids of the roles, add_bos_token and, if true,
// add_eos_token. `model` says how many ids there are, those without a token become [PADi], unused;
// and which ends a text or begins one where the tokenizer has none. `pre` is the splitting rule to
// name; empty: the tokenizer's. `folder` is for errors, stop tokens and its chat template. Returns
// notes for the user. Throws unsupported if the tokenizer has no rule with a name and none was
// given, or if its normaliser changes text in a way that readers of GGUF do not.
std::vector<std::string> add_gguf_tokenizer(const Tokenizer& tokenizer, const ModelSpec& model,
                                            const std::string& pre, const std::string& folder,
                                            GgufMetadata& out);

}  // namespace snug
