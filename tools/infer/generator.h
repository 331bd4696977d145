// Text generation with a session's prefill, decode and fork programs: prompts in, tokens out.
//
// All rows of a session stand at the same position, so prompts of any lengths are decoded together
// without padding: the rows start where the shortest prompt ends, and those that are not through
// their prompt are fed its tokens meanwhile. A row's logits have the same bits whatever stands in
// the other rows (matrix products and attention compute a row alone), so texts do not depend on
// what was decoded together.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tools/infer/sampler.h"
#include "tools/infer/token_rules.h"
#include "tools/session/session.h"

namespace snug {

// Why it ended: as many tokens as asked for; a stop token, which is not handed out; the caller; all
// positions of the cache are taken; every token is forbidden.
enum class GenerationEnd : uint8_t { length, stop_token, stopped, cache_full, no_token };

// A token that was chosen, and the most likely ones there: log probabilities under the model,
// before penalties and filters.
struct TokenChance {
  int32_t id;
  float logprob;
};

// One prompt and the rows of the session that continue it.
class Continuation {
 public:
  virtual ~Continuation() = default;
  virtual std::span<const int32_t> prompt() const = 0;
  virtual int64_t rows() const { return 1; }
  // Takes the logits of its rows, `stride` floats apart, and writes for every row the token to feed
  // and, where there are several, the row whose past it continues (cache_rows.h). False: it is
  // done.
  virtual bool step(const float* logits, int64_t stride, int32_t* next, int32_t* source) = 0;
  // The cache has no room for what step() asked to feed.
  virtual void no_room() = 0;
};

// Tokens of texts that the cache has room for, without virtual ones.
int64_t text_room(const Session& session);

// Runs all to their ends, together: their rows, at most the session's kv_rows, and their prompts,
// each of at least one token and at most the cache's length, else a usage error. `cached`: so many
// tokens of the only prompt stand in the cache already, of a call before.
void decode_together(Session& session, std::span<Continuation* const> continuations,
                     int64_t cached = 0);

struct GenerationOptions {
  int64_t max_new_tokens = 64;
  SamplingOptions sampling;
  RuleOptions rules;
  int64_t logprobs = -1;  // most likely tokens beside each chosen one; -1: no log probabilities
};

// One text, sampled or greedy.
class SampledText : public Continuation {
 public:
  // `sampler` and `rules` may serve many; `vocab_size` logits are those of the model. `each`
  // receives every new token and returns false to stop.
  SampledText(Sampler& sampler, TokenRules& rules, int64_t vocab_size,
              std::span<const int32_t> prompt, const GenerationOptions& options, Draw draw,
              std::function<bool(int32_t)> each);
  std::span<const int32_t> prompt() const override { return {tokens_.data(), prompt_}; }
  bool step(const float* logits, int64_t stride, int32_t* next, int32_t* source) override;
  void no_room() override { end_ = GenerationEnd::cache_full; }

  std::span<const int32_t> ids() const {
    return std::span<const int32_t>(tokens_).subspan(prompt_);
  }
  // options.logprobs + 1 a token: its own, then the most likely.
  const std::vector<TokenChance>& chances() const { return chances_; }
  GenerationEnd end() const { return end_; }

 private:
  Sampler& sampler_;
  TokenRules& rules_;
  int64_t vocab_size_;
  const GenerationOptions& options_;
  Draw draw_;
  std::function<bool(int32_t)> each_;
  std::vector<int32_t> tokens_;  // the prompt and what follows
  size_t prompt_;
  std::vector<float> scores_;
  std::vector<TokenChance> chances_;
  GenerationEnd end_ = GenerationEnd::length;
};

// The chance of `token` and of the `most` likely ones, the likeliest first, of equal ones the
// smaller id, appended to `out`.
void append_chances(const float* logits, int64_t vocab_size, int32_t token, int64_t most,
                    std::vector<TokenChance>& out);

// One prompt in the first row of a session, as training shows samples: `each` receives every new
// token and returns false to stop. Nothing that it allocates stays.
GenerationEnd generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerationOptions& options, const std::function<bool(int32_t)>& each);

}  // namespace snug
