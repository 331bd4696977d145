#include "tools/infer/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/rng.h"

namespace snug {

void check_sampling(const SamplingOptions& o) {
  if (!(o.temperature >= 0.0 && std::isfinite(o.temperature)))
    fail(ErrorCode::usage, "a finite temperature of at least 0", fmt::format("{}", o.temperature),
         "--temperature 0.8, or 0 for greedy");
  if (o.top_k < 0)
    fail(ErrorCode::usage, "top_k of at least 0", fmt::format("{}", o.top_k), "--top-k 50");
  if (!(o.top_p > 0.0 && o.top_p <= 1.0))
    fail(ErrorCode::usage, "top_p in (0, 1]", fmt::format("{}", o.top_p), "--top-p 0.95");
  if (!(o.min_p >= 0.0 && o.min_p <= 1.0))
    fail(ErrorCode::usage, "min_p in [0, 1]", fmt::format("{}", o.min_p), "--min-p 0.05");
}

Sampler::Sampler(int64_t vocab_size, SamplingOptions options)
    : vocab_size_(vocab_size),
      options_(options),
      logits_(static_cast<size_t>(vocab_size)),
      scratch_(static_cast<size_t>(vocab_size)),
      weights_(static_cast<size_t>(vocab_size)),
      candidates_(static_cast<size_t>(vocab_size)) {
  check_sampling(options);
}

double Sampler::read(const float* logits) {
  // NaN has no place in an order, and the difference of two infinities is NaN: what is not a number
  // is never drawn, and nothing is above the largest float.
  bool any_finite = false;
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < vocab_size_; ++i) {
    const float x = logits[i];
    any_finite = any_finite || std::isfinite(x);
    const float y = std::isnan(x) ? -std::numeric_limits<float>::infinity()
                                  : std::min(x, std::numeric_limits<float>::max());
    logits_[static_cast<size_t>(i)] = y;
    most = std::max(most, y);
  }
  if (!any_finite)
    fail(ErrorCode::data, fmt::format("a finite logit among the {} of the next token", vocab_size_),
         "NaN and infinities only",
         "look for NaN in the weights, or take an earlier checkpoint or --precision fp32");
  return most;
}

// Lowers the set above the cut to the smallest that reaches top_p. Together, tokens less likely
// than (1 - top_p) / V have less than 1 - top_p, so all of them go; the few others are sorted.
void Sampler::cut_top_p(double total) {
  const double least =
      (1.0 - options_.top_p) * total / static_cast<double>(vocab_size_) * (1.0 - 1e-9);
  size_t count = 0;
  for (int64_t i = 0; i < vocab_size_; ++i) {
    const auto at = static_cast<size_t>(i);
    if (logits_[at] >= cut_ && weights_[at] >= least)
      candidates_[count++] = {static_cast<int32_t>(i), weights_[at]};
  }
  const auto logit = [&](size_t i) { return logits_[static_cast<size_t>(candidates_[i].id)]; };
  std::sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(count),
            [&](const Candidate& a, const Candidate& b) {
              const float x = logits_[static_cast<size_t>(a.id)],
                          y = logits_[static_cast<size_t>(b.id)];
              return x > y || (x == y && a.id < b.id);
            });
  double sum = 0.0;
  size_t kept = 0;
  while (kept < count && sum < options_.top_p * total) sum += candidates_[kept++].weight;
  kept = std::max<size_t>(1, kept);
  cut_ = logit(kept - 1);
  for (ties_ = 0; kept > 0 && logit(kept - 1) == cut_; --kept) ++ties_;
}

std::span<const Sampler::Candidate> Sampler::candidates(const float* logits) {
  const double most = read(logits);
  cut_ = -std::numeric_limits<float>::infinity();
  ties_ = vocab_size_;
  if (options_.top_k > 0 && options_.top_k < vocab_size_) {
    std::copy(logits_.begin(), logits_.end(), scratch_.begin());
    const auto last = scratch_.begin() + (options_.top_k - 1);
    std::nth_element(scratch_.begin(), last, scratch_.end(), std::greater<>());
    cut_ = *last;
  }
  double total = 0.0;
  for (size_t i = 0; i < logits_.size(); ++i) {
    const bool seen = logits_[i] >= cut_;
    weights_[i] =
        seen ? std::exp((static_cast<double>(logits_[i]) - most) / options_.temperature) : 0.0;
    total += weights_[i];
  }
  if (options_.top_p < 1.0) cut_top_p(total);
  size_t count = 0;
  int64_t ties = ties_;
  for (size_t i = 0; i < logits_.size(); ++i) {
    const float x = logits_[i];
    if (x < cut_ || (x == cut_ && --ties < 0)) continue;
    if (weights_[i] <= 0.0 || weights_[i] < options_.min_p) continue;
    candidates_[count++] = {static_cast<int32_t>(i), weights_[i]};
  }
  return {candidates_.data(), count};
}

int32_t Sampler::next(const float* logits, const Draw& draw) {
  if (options_.temperature == 0.0) {
    read(logits);
    return static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
  }
  const std::span<const Candidate> list = candidates(logits);
  double total = 0.0;
  for (const Candidate& c : list) total += c.weight;
  const RandomKey key = random_key(options_.seed, draw.token, 0x73616d70u);
  const Philox4 u = random_block(key, draw.prompt, 0, draw.sequence);
  const double target = (static_cast<double>(u[0]) * 0x1p-32) * total;
  double sum = 0.0;
  for (const Candidate& c : list) {
    sum += c.weight;
    if (target < sum) return c.id;
  }
  return list.back().id;
}

}  // namespace snug
