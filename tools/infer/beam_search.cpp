#include "tools/infer/beam_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"

namespace snug {

EarlyStopping parse_early_stopping(std::string_view text) {
  if (text == "false") return EarlyStopping::no;
  if (text == "true") return EarlyStopping::yes;
  if (text == "never") return EarlyStopping::never;
  fail(ErrorCode::usage, "--early-stopping as true, false or never", fmt::format("\"{}\"", text),
       "--early-stopping true");
}

BeamSearch::BeamSearch(TokenRules& rules, int64_t vocab_size, int64_t drawable,
                       std::span<const int32_t> prompt, const GenerationOptions& options,
                       const BeamOptions& beams,
                       std::function<bool(std::span<const int32_t>)> stops)
    : rules_(rules),
      vocab_size_(vocab_size),
      drawable_(drawable),
      prompt_(prompt.begin(), prompt.end()),
      options_(options),
      beams_(beams),
      stops_(std::move(stops)),
      running_(1),
      scores_(static_cast<size_t>(vocab_size)) {}

// The best continuations of all beams, in order; of equal ones the earlier beam, the smaller id.
void BeamSearch::collect(const float* logits, int64_t stride) {
  const size_t stop_tokens = rules_.options().stop_tokens.size();
  const size_t most = std::max<size_t>(2, 1 + stop_tokens) * static_cast<size_t>(beams_.beams);
  list_.clear();
  for (size_t b = 0; b < running_.size(); ++b) {
    const Beam& beam = running_[b];
    const float* row = logits + beam.row * stride;
    const double norm = log_sum_exp(row, vocab_size_);
    if (!std::isfinite(norm))
      fail(ErrorCode::data, fmt::format("finite logits of the {} tokens", vocab_size_),
           "NaN and infinities",
           "look for NaN in the weights, or take an earlier checkpoint or --precision fp32");
    for (int64_t i = 0; i < vocab_size_; ++i)
      scores_[static_cast<size_t>(i)] = static_cast<float>(static_cast<double>(row[i]) - norm);
    if (rules_.active()) {
      tokens_.assign(prompt_.begin(), prompt_.end());
      tokens_.insert(tokens_.end(), beam.text.ids.begin(), beam.text.ids.end());
      rules_.apply(scores_.data(), tokens_, length_);
    }
    for (int64_t i = 0; i < drawable_; ++i) {
      const double score = beam.text.score + static_cast<double>(scores_[static_cast<size_t>(i)]);
      if (!std::isfinite(score) || (list_.size() == most && !(score > list_.back().score)))
        continue;
      if (list_.size() == most) list_.pop_back();
      size_t at = list_.size();
      while (at > 0 && score > list_[at - 1].score) --at;
      list_.insert(list_.begin() + static_cast<int64_t>(at),
                   {score, b, static_cast<int32_t>(i), false});
    }
  }
}

BeamText BeamSearch::extended(const Next& n, const float* logits, int64_t stride) const {
  const Beam& beam = running_[n.beam];
  BeamText text = beam.text;
  text.score = n.score;
  if (rules_.stops(n.token)) {
    text.end = GenerationEnd::stop_token;
    return text;
  }
  text.ids.push_back(n.token);
  if (options_.logprobs >= 0)
    append_chances(logits + beam.row * stride, vocab_size_, n.token, options_.logprobs,
                   text.chances);
  return text;
}

bool BeamSearch::stopped_by(const Next& n) {
  if (!stops_) return false;
  tokens_ = running_[n.beam].text.ids;
  tokens_.push_back(n.token);
  return stops_(tokens_);
}

void BeamSearch::keep_best() {
  std::stable_sort(finished_.begin(), finished_.end(),
                   [](const BeamText& a, const BeamText& b) { return a.score > b.score; });
  if (static_cast<int64_t>(finished_.size()) > beams_.beams)
    finished_.resize(static_cast<size_t>(beams_.beams));
}

// Marks the continuations that end and keeps the finished ones among the first K. True if all end.
bool BeamSearch::finish(const float* logits, int64_t stride) {
  const bool full = static_cast<int64_t>(finished_.size()) == beams_.beams;
  const bool closed = full && beams_.early_stopping == EarlyStopping::yes;
  const double divisor = std::pow(static_cast<double>(length_ + 1), beams_.length_penalty);
  bool all = true;
  for (size_t i = 0; i < list_.size(); ++i) {
    Next& n = list_[i];
    const bool last = rules_.stops(n.token), stopped = !last && stopped_by(n);
    n.ends = last || stopped || length_ + 1 >= options_.max_new_tokens;
    if (n.ends && !closed && i < static_cast<size_t>(beams_.beams)) {
      BeamText text = extended(n, logits, stride);
      if (stopped) text.end = GenerationEnd::stopped;
      text.score /= divisor;
      finished_.push_back(std::move(text));
    }
    all = all && n.ends;
  }
  keep_best();
  return all;
}

// Whether a running beam of this score could still be among the finished.
bool BeamSearch::can_improve(double best) const {
  if (static_cast<int64_t>(finished_.size()) < beams_.beams) return true;
  const bool longest = beams_.early_stopping == EarlyStopping::never && beams_.length_penalty > 0;
  const auto length = static_cast<double>(longest ? options_.max_new_tokens : length_);
  return best / std::pow(length, beams_.length_penalty) > finished_.back().score;
}

bool BeamSearch::step(const float* logits, int64_t stride, int32_t* next, int32_t* source) {
  collect(logits, stride);
  if (list_.empty()) {
    // Every continuation is forbidden: what there is has to do.
    for (Beam& beam : running_) {
      beam.text.end = GenerationEnd::no_token;
      beam.text.score /=
          std::pow(static_cast<double>(std::max<int64_t>(1, length_)), beams_.length_penalty);
      finished_.push_back(std::move(beam.text));
    }
    keep_best();
    return false;
  }
  const bool all = finish(logits, stride);

  std::vector<Beam> going;
  for (const Next& n : list_) {
    if (n.ends || static_cast<int64_t>(going.size()) == beams_.beams) continue;
    going.push_back({extended(n, logits, stride), static_cast<int64_t>(n.beam)});
  }
  ++length_;
  const bool enough = static_cast<int64_t>(finished_.size()) == beams_.beams &&
                      beams_.early_stopping == EarlyStopping::yes;
  if (all || enough || going.empty() || !can_improve(going[0].text.score)) return false;

  // The first continuation of a beam stays in its row; the others take rows whose beams end.
  const auto K = static_cast<size_t>(beams_.beams);
  std::vector<char> taken(K, 0), placed(going.size(), 0);
  for (size_t i = 0; i < K; ++i) source[i] = static_cast<int32_t>(i);
  for (size_t i = 0; i < going.size(); ++i) {
    const int64_t row = running_[static_cast<size_t>(going[i].row)].row;
    going[i].row = row;
    if (taken[static_cast<size_t>(row)]) continue;
    taken[static_cast<size_t>(row)] = placed[i] = 1;
  }
  size_t free = 0;
  for (size_t i = 0; i < going.size(); ++i) {
    if (placed[i]) continue;
    while (taken[free]) ++free;
    taken[free] = 1;
    source[free] = static_cast<int32_t>(going[i].row);
    going[i].row = static_cast<int64_t>(free);
  }
  running_ = std::move(going);
  std::fill_n(next, K, 0);
  for (const Beam& beam : running_) next[beam.row] = beam.text.ids.back();
  return true;
}

void BeamSearch::no_room() {
  for (Beam& beam : running_) {
    beam.text.end = GenerationEnd::cache_full;
    beam.text.score /=
        std::pow(static_cast<double>(std::max<int64_t>(1, length_)), beams_.length_penalty);
    finished_.push_back(std::move(beam.text));
  }
  keep_best();
}

}  // namespace snug
