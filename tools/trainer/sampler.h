// Choosing the next token from logits, on the host, without allocating.
#pragma once

#include <cstdint>
#include <vector>

namespace snug {

struct SamplingOptions {
  double temperature = 0.8;  // 0: greedy
  int64_t top_k = 0;         // 0: off
  double top_p = 1.0;        // 1: off
  uint64_t seed = 42;
};

// Filters apply in Hugging Face's order: temperature, top-k, top-p (the smallest set of most likely
// tokens whose probability reaches top_p; at least one). Ties go to the smaller id.
class Sampler {
 public:
  Sampler(int64_t vocab_size, SamplingOptions options);  // throws usage on values out of range
  // `draw` numbers the random draw: the same (seed, draw) and logits give the same token. Reads
  // vocab_size logits. NaN counts as -infinity; throws data if no logit is finite.
  int32_t next(const float* logits, uint64_t draw);

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  int64_t vocab_size_;
  SamplingOptions options_;
  std::vector<Candidate> candidates_;
};

}  // namespace snug
