#include "tools/infer/token_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

}  // namespace

void check_rules(const RuleOptions& o) {
  if (!(o.repetition_penalty > 0.0 && std::isfinite(o.repetition_penalty)))
    fail(ErrorCode::usage, "a finite repetition_penalty above 0",
         fmt::format("{}", o.repetition_penalty), "--repetition-penalty 1.1, or 1 for none");
  if (o.no_repeat_ngram_size < 0)
    fail(ErrorCode::usage, "no_repeat_ngram_size of at least 0",
         fmt::format("{}", o.no_repeat_ngram_size), "--no-repeat-ngram-size 3, or 0 for none");
  if (o.min_new_tokens < 0)
    fail(ErrorCode::usage, "min_new_tokens of at least 0", fmt::format("{}", o.min_new_tokens),
         "--min-new-tokens 10, or 0 for none");
}

TokenRules::TokenRules(int64_t vocab_size, RuleOptions options)
    : vocab_size_(vocab_size), options_(std::move(options)) {
  check_rules(options_);
  if (options_.repetition_penalty != 1.0) seen_.resize(static_cast<size_t>(vocab_size));
}

bool TokenRules::active() const {
  return options_.repetition_penalty != 1.0 || options_.no_repeat_ngram_size > 0 ||
         (options_.min_new_tokens > 0 && !options_.stop_tokens.empty());
}

bool TokenRules::stops(int32_t token) const {
  return std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) !=
         options_.stop_tokens.end();
}

void TokenRules::apply(float* scores, std::span<const int32_t> tokens, int64_t new_tokens) {
  const auto known = [&](int32_t id) { return id >= 0 && id < vocab_size_; };
  if (options_.repetition_penalty != 1.0) {
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    if (++call_ == 0) {  // the numbers begin again
      std::fill(seen_.begin(), seen_.end(), 0u);
      call_ = 1;
    }
    for (const int32_t id : tokens) {
      if (!known(id) || seen_[static_cast<size_t>(id)] == call_) continue;
      seen_[static_cast<size_t>(id)] = call_;
      float& score = scores[id];
      score = score < 0.0f ? score * penalty : score / penalty;
    }
  }
  const auto n = options_.no_repeat_ngram_size, count = static_cast<int64_t>(tokens.size());
  if (n > 0 && n <= count) {
    // The last n - 1 tokens, and where they stood before: what followed is forbidden.
    const std::span<const int32_t> suffix = tokens.last(static_cast<size_t>(n - 1));
    for (int64_t i = 0; i + n <= count; ++i)
      if (std::equal(suffix.begin(), suffix.end(), tokens.begin() + i))
        if (const int32_t id = tokens[static_cast<size_t>(i + n - 1)]; known(id))
          scores[id] = kForbidden;
  }
  if (new_tokens < options_.min_new_tokens)
    for (const int32_t id : options_.stop_tokens)
      if (known(id)) scores[id] = kForbidden;
}

double log_sum_exp(const float* logits, int64_t count) {
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i)
    if (logits[i] > most) most = logits[i];
  if (!std::isfinite(most)) return most;
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i)
    if (!std::isnan(logits[i]))
      sum += std::exp(static_cast<double>(logits[i]) - static_cast<double>(most));
  return static_cast<double>(most) + std::log(sum);
}

}  // namespace snug
