// The factors of dropout, 64 channels at a time: what dropout.h and residual.h share.
#pragma once

#include "engine/core/rng.h"
#include "engine/memory/step_state.h"
#include "layers/ops/dropout.h"

namespace snug {

inline constexpr int64_t kMaskChannels = 64;

// What is the same for a whole call.
struct DropoutMask {
  DropoutMask(const DropoutSpec& spec, const StepState& state)
      : key(random_key(state.seed, static_cast<uint64_t>(state.step), spec.site)),
        first_sample(static_cast<uint64_t>(state.first_sample)),
        p(spec.p),
        kept(1.0f / (1.0f - spec.p)) {}

  // factor[i] = 0 or 1 / (1 - p) for the channels begin + i, i < 64; begin a multiple of 64. The
  // sixteen Philox blocks go side by side, so that each round is vector code.
  void factors(float* factor, int64_t sample_in_batch, int64_t position, int64_t begin) const {
    constexpr int kBlocks = kMaskChannels / 4;
    const uint64_t sample = first_sample + static_cast<uint64_t>(sample_in_batch);
    uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
    for (int i = 0; i < kBlocks; ++i) {
      c0[i] = static_cast<uint32_t>(begin / 4 + i);
      c1[i] = static_cast<uint32_t>(position);
      c2[i] = static_cast<uint32_t>(sample);
      c3[i] = static_cast<uint32_t>(sample >> 32);
    }
    uint32_t k0 = key.k0, k1 = key.k1;
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kBlocks; ++i) {
        const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0[i];
        const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2[i];
        c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
        c1[i] = static_cast<uint32_t>(p1);
        c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
        c3[i] = static_cast<uint32_t>(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < kBlocks; ++i) {
      factor[4 * i] = uniform_from(c0[i]) >= p ? kept : 0.0f;
      factor[4 * i + 1] = uniform_from(c1[i]) >= p ? kept : 0.0f;
      factor[4 * i + 2] = uniform_from(c2[i]) >= p ? kept : 0.0f;
      factor[4 * i + 3] = uniform_from(c3[i]) >= p ? kept : 0.0f;
    }
  }

  RandomKey key;
  uint64_t first_sample;
  float p, kept;
};

// Entry checks of both ops, in dropout.cpp: shapes, dtypes, p of [0,1).
void check_dropout(const View& y, const char* y_name, const View& x, const char* x_name, int64_t B,
                   int64_t T, const DropoutSpec& spec, const View& state);

}  // namespace snug
