// The mask of a call of dropout, row by row: what dropout.cpp and residual_rows.h share.
#pragma once

#include <cmath>

#include "engine/core/rng.h"
#include "engine/memory/step_state.h"
#include "layers/ops/dropout.h"
#include "layers/ops/row_loops.h"

namespace snug {

// A channel is kept if (u >> 8) 2^-24 >= p: both are multiples of 2^-24 or lie between two, so this
// is u >= ceil(2^24 p) 2^8, and p < 1 keeps it in 32 bits.
inline uint32_t dropout_threshold(float p) {
  return static_cast<uint32_t>(std::ceil(static_cast<double>(p) * 0x1p24)) << 8;
}
// The factor of kept channels.
inline float dropout_kept(float p) {
  return 1.0f / (1.0f - p);
}

class DropoutMask {
 public:
  DropoutMask(const DropoutSpec& spec, const StepState& state)
      : key_(random_key(state.seed, static_cast<uint64_t>(state.step), spec.site)),
        first_sample_(static_cast<uint64_t>(state.first_sample)),
        threshold_(dropout_threshold(spec.p)),
        kept_(dropout_kept(spec.p)) {}

  MaskRow row(int64_t sample_in_batch, int64_t position) const {
    return {key_.k0,
            key_.k1,
            first_sample_ + static_cast<uint64_t>(sample_in_batch),
            static_cast<uint32_t>(position),
            threshold_,
            kept_};
  }

 private:
  RandomKey key_;
  uint64_t first_sample_;
  uint32_t threshold_;
  float kept_;
};

// Entry checks of both ops, in dropout.cpp: shapes, dtypes, p of [0,1).
void check_dropout(const View& y, const char* y_name, const View& x, const char* x_name, int64_t B,
                   int64_t T, const DropoutSpec& spec, const View& state);

}  // namespace snug
