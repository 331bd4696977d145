// A generated text for people and for programs.
#pragma once

#include <optional>
#include <string>

#include "engine/text/tokenizer.h"
#include "tools/infer/generation.h"

namespace snug {

// "length", "eos", "stop", "positions" or "no_token".
const char* finish_reason(GenerationEnd end);

// One line of JSON: index and sequence (numbers from 0), prompt if given, text, tokens,
// prompt_tokens, finish_reason; score with beam search; logprobs, a list of {id, token, logprob,
// top}, if asked for.
std::string text_json(const GeneratedText& text, const GenerationRequest& request,
                      const Tokenizer& tokenizer, const std::optional<std::string>& prompt);

// A line a token: log probability, the token in quotes, then the most likely ones.
std::string chances_text(const GeneratedText& text, const Tokenizer& tokenizer);

}  // namespace snug
