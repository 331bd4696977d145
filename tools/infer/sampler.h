// Choosing the next token from logits, on the host, without allocating.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace snug {

struct SamplingOptions {
  double temperature = 0.8;  // 0: greedy
  int64_t top_k = 0;         // 0: off
  double top_p = 1.0;        // 1: off
  uint64_t seed = 42;
  double min_p = 0.0;  // 0: off
};
void check_sampling(const SamplingOptions& options);  // throws usage on values out of range

// The place of a draw in the random key.
struct Draw {
  uint64_t token = 0;     // new tokens before it
  uint64_t prompt = 0;    // number of the prompt
  uint32_t sequence = 0;  // which of the continuations of the prompt
};

// Filters apply in Hugging Face's order: temperature, top-k (tokens as likely as the K-th stay, so
// there may be more), top-p (the smallest set of most likely tokens whose probability reaches
// top_p; at least one; of equally likely ones the smaller ids), min-p (tokens at least min_p times
// as likely as the most likely one).
class Sampler {
 public:
  Sampler(int64_t vocab_size, SamplingOptions options);  // throws usage
  // The same seed, draw and logits give the same token. Reads vocab_size logits. NaN counts as
  // -infinity; throws data if no logit is finite. Greedy takes the smaller id of equal logits.
  int32_t next(const float* logits, const Draw& draw);

  int64_t vocab_size() const { return vocab_size_; }

  struct Candidate {
    int32_t id;
    double weight;  // relative to that of the most likely token
  };
  // What may be drawn at a temperature above 0, by id; valid until the next call.
  std::span<const Candidate> candidates(const float* logits);

 private:
  double read(const float* logits);  // fills logits_, the largest
  void cut_top_p(double total);

  int64_t vocab_size_;
  SamplingOptions options_;
  std::vector<float> logits_, scratch_;
  std::vector<double> weights_;
  std::vector<Candidate> candidates_;
  // What is kept: logits above the cut, and so many of those equal to it.
  float cut_ = 0;
  int64_t ties_ = 0;
};

}  // namespace snug
