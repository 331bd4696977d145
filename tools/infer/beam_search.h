// Beam search as Hugging Face's generate() defines it: the same texts and scores.
//
// A beam's score is the sum of its tokens' log probabilities, each after the rules of
// token_rules.h, which here act on log probabilities. At every step the best max(2, 1 + stop
// tokens) K continuations of the K beams are looked at. Those among the first K that end (a stop
// token, a stop string, max_new_tokens) are finished, with the score divided by
// length^length_penalty, the length counting new tokens, the stop token too; the K best finished
// ones are kept. The best K that do not end go on. It is over when
//   early_stopping yes    there are K finished texts
//   early_stopping no     and the best beam, divided by its present length^length_penalty, is no
//                         better than the worst of them
//   early_stopping never  the same, with the length max_new_tokens if length_penalty is above 0
// or when every continuation ends.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "tools/infer/generator.h"

namespace snug {

enum class EarlyStopping : uint8_t { no, yes, never };
// "false", "true" or "never"; throws usage.
EarlyStopping parse_early_stopping(std::string_view text);

struct BeamOptions {
  int64_t beams = 4;
  double length_penalty = 1.0;
  EarlyStopping early_stopping = EarlyStopping::no;
};

struct BeamText {
  std::vector<int32_t> ids;  // new tokens, without the stop token
  std::vector<TokenChance> chances;
  double score = 0;
  GenerationEnd end = GenerationEnd::length;
};

class BeamSearch : public Continuation {
 public:
  // `drawable` tokens of the model's `vocab_size` may be chosen. `stops`, when given, says whether
  // the last of these new tokens ends the text; those before it did not. max_new_tokens and the
  // prompt must fit in the cache, of which the last token takes nothing.
  BeamSearch(TokenRules& rules, int64_t vocab_size, int64_t drawable,
             std::span<const int32_t> prompt, const GenerationOptions& options,
             const BeamOptions& beams, std::function<bool(std::span<const int32_t>)> stops);

  std::span<const int32_t> prompt() const override { return prompt_; }
  int64_t rows() const override { return beams_.beams; }
  bool step(const float* logits, int64_t stride, int32_t* next, int32_t* source) override;
  void no_room() override;

  // The finished texts, the best first; complete when step() has returned false.
  const std::vector<BeamText>& texts() const { return finished_; }

 private:
  struct Beam {
    BeamText text;
    int64_t row = 0;
  };
  // One more token for a beam.
  struct Next {
    double score;
    size_t beam;
    int32_t token;
    bool ends;
  };

  void collect(const float* logits, int64_t stride);
  BeamText extended(const Next& n, const float* logits, int64_t stride) const;
  bool stopped_by(const Next& n);
  bool finish(const float* logits, int64_t stride);
  void keep_best();
  bool can_improve(double best) const;

  TokenRules& rules_;
  int64_t vocab_size_, drawable_;
  std::vector<int32_t> prompt_, tokens_;  // tokens_: those of a beam, for a while
  GenerationOptions options_;
  BeamOptions beams_;
  std::function<bool(std::span<const int32_t>)> stops_;
  std::vector<Beam> running_;
  std::vector<BeamText> finished_;
  std::vector<Next> list_;  // the best continuations, the best first
  std::vector<float> scores_;
  int64_t length_ = 0;  // new tokens of every running beam
};

}  // namespace snug
