// The factors of dropout, 64 channels at a time: what dropout.cpp and residual.cpp share.
#pragma once

#include "engine/core/rng.h"
#include "engine/memory/step_state.h"
#include "layers/ops/dropout.h"

namespace snug {

inline constexpr int64_t kMaskChannels = 64;

// What is the same for a whole call.
class DropoutMask {
 public:
  DropoutMask(const DropoutSpec& spec, const StepState& state)
      : key_(random_key(state.seed, static_cast<uint64_t>(state.step), spec.site)),
        first_sample_(static_cast<uint64_t>(state.first_sample)),
        p_(spec.p),
        kept_(1.0f / (1.0f - spec.p)) {}

  // factor[i] = 0 or 1 / (1 - p) for the channels begin + i, i < 64; begin a multiple of 64.
  void factors(float* factor, int64_t sample_in_batch, int64_t position, int64_t begin) const;

 private:
  RandomKey key_;
  uint64_t first_sample_;
  float p_, kept_;
};

// Entry checks of both ops, in dropout.cpp: shapes, dtypes, p of [0,1).
void check_dropout(const View& y, const char* y_name, const View& x, const char* x_name, int64_t B,
                   int64_t T, const DropoutSpec& spec, const View& state);

}  // namespace snug
