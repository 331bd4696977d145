// What the tokens so far do to the scores of the next one, in Hugging Face's order: repetition
// penalty, no repeated n-grams, no end before min_new_tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace snug {

struct RuleOptions {
  // Scores of tokens that were seen, in the prompt too: divided by it if positive, else multiplied
  // (Keskar et al., "CTRL", 2019). 1: off.
  double repetition_penalty = 1.0;
  int64_t no_repeat_ngram_size = 0;  // no n-gram, the prompt's included, comes twice; 0: off
  int64_t min_new_tokens = 0;        // the stop tokens are forbidden before so many new tokens
  std::vector<int32_t> stop_tokens;
};
void check_rules(const RuleOptions& options);  // throws usage on values out of range

class TokenRules {
 public:
  TokenRules(int64_t vocab_size, RuleOptions options);  // throws usage
  bool active() const;
  // Changes scores of vocab_size tokens in place; what is forbidden becomes -infinity. `tokens` are
  // the prompt and the new_tokens after it. Ids outside the vocabulary count for nothing.
  void apply(float* scores, std::span<const int32_t> tokens, int64_t new_tokens);
  bool stops(int32_t token) const;
  const RuleOptions& options() const { return options_; }

 private:
  int64_t vocab_size_;
  RuleOptions options_;
  std::vector<uint32_t> seen_;  // the number of the call that saw a token last
  uint32_t call_ = 0;
};

// log sum e^x of the logits that are not NaN: a token's log probability is its logit less this.
double log_sum_exp(const float* logits, int64_t count);

}  // namespace snug
