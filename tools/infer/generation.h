// What `snug generate` was asked for, and the prompts it is done with.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/infer/beam_search.h"
#include "tools/infer/inference.h"

namespace snug {

// Flags as they stand on the command line; the names in messages are theirs.
struct GenerationRequest {
  GenerationOptions options;
  BeamOptions beams = {.beams = 1};
  int64_t sequences = 1;   // continuations of each prompt
  int64_t batch_size = 0;  // sequences, of beam search prompts, decoded together; 0: up to 8
  std::vector<std::string> stops;

  bool beam_search() const { return beams.beams > 1; }
  // Rows of the session that one of a batch takes.
  int64_t unit() const { return beam_search() ? beams.beams : 1; }
};

// Throws usage on values out of range and on combinations that make no sense.
void check_generation(const GenerationRequest& request);

// The tokens that end a text: the model's (model_stop_tokens), else the tokenizer's. Throws data on
// a broken file.
std::vector<int32_t> stop_tokens(const std::string& folder, const ModelSpec& spec,
                                 const Tokenizer& tokenizer);

// A finished continuation.
struct GeneratedText {
  int64_t prompt = 0, sequence = 0;  // numbers from 0
  int64_t prompt_tokens = 0;
  std::vector<int32_t> ids;  // new tokens, without the stop token
  std::string text;          // up to the stop string
  GenerationEnd end = GenerationEnd::length;
  double score = 0;  // of beam search
  std::vector<TokenChance> chances;
};

// How many of `sequences` there are when `prompts` have one each, and the rows for them: at most
// what was asked for, else up to 8 of a batch.
int64_t wanted_rows(const GenerationRequest& request, int64_t prompts);

// Continues `count` prompts, which `ids` gives by number, each at most the session's positions, and
// hands every text to `done` in order of prompt and sequence, after the batch with which it and all
// before it are finished. With `shown`, which one sampled sequence alone may have, text is handed
// out as it is made. `cached`: of decode_together.
void generate_texts(Inference& in, const GenerationRequest& request, int64_t count,
                    const std::function<std::vector<int32_t>(int64_t)>& ids,
                    const std::function<void(const GeneratedText&)>& done,
                    const std::function<void(const std::string&)>& shown = nullptr,
                    int64_t cached = 0);

}  // namespace snug
