#include "tools/trainer/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/rng.h"

namespace snug {

Sampler::Sampler(int64_t vocab_size, SamplingOptions options)
    : vocab_size_(vocab_size), options_(options), candidates_(static_cast<size_t>(vocab_size)) {
  if (!(options.temperature >= 0.0 && std::isfinite(options.temperature)))
    fail(ErrorCode::usage, "a finite temperature of at least 0",
         fmt::format("{}", options.temperature), "--temperature 0.8, or 0 for greedy");
  if (options.top_k < 0)
    fail(ErrorCode::usage, "top_k of at least 0", fmt::format("{}", options.top_k), "--top-k 50");
  if (!(options.top_p > 0.0 && options.top_p <= 1.0))
    fail(ErrorCode::usage, "top_p in (0, 1]", fmt::format("{}", options.top_p), "--top-p 0.95");
}

int32_t Sampler::next(const float* logits, uint64_t draw) {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  };
  // NaN has no place in an order, and the difference of two infinities is NaN: what is not a number
  // is never drawn, and nothing is above the largest float.
  bool any_finite = false;
  for (int64_t i = 0; i < vocab_size_; ++i) {
    const float x = logits[i];
    any_finite = any_finite || std::isfinite(x);
    candidates_[static_cast<size_t>(i)] = {std::isnan(x)
                                               ? -std::numeric_limits<float>::infinity()
                                               : std::min(x, std::numeric_limits<float>::max()),
                                           static_cast<int32_t>(i)};
  }
  if (!any_finite)
    fail(ErrorCode::data, fmt::format("a finite logit among the {} of the next token", vocab_size_),
         "NaN and infinities only",
         "look for NaN in the weights, or take an earlier checkpoint or --precision fp32");
  if (options_.temperature == 0.0)
    return std::min_element(candidates_.begin(), candidates_.end(), better)->id;

  int64_t count = vocab_size_;
  if (options_.top_k > 0) count = std::min(count, options_.top_k);
  std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(), better);

  const double most = candidates_[0].logit;
  const auto weight = [&](int64_t i) {
    return std::exp((static_cast<double>(candidates_[static_cast<size_t>(i)].logit) - most) /
                    options_.temperature);
  };
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += weight(i);
  if (options_.top_p < 1.0) {
    double sum = 0.0;
    int64_t kept = 0;
    while (kept < count && sum < options_.top_p * total) sum += weight(kept++);
    count = std::max<int64_t>(1, kept);
    total = sum;
  }
  const RandomKey key = random_key(options_.seed, draw, 0x73616d70u);
  const Philox4 u = random_block(key, 0, 0, 0);
  const double target = (static_cast<double>(u[0]) * 0x1p-32) * total;
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    sum += weight(i);
    if (target < sum) return candidates_[static_cast<size_t>(i)].id;
  }
  return candidates_[static_cast<size_t>(count - 1)].id;
}

}  // namespace snug
