// Dropout factors, one value at a time from the definition of the random key.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/rng.h"

namespace snug::test {

// The number of a channel in [0,1), from the words of its two blocks one by one.
inline float channel_uniform(RandomKey key, uint64_t sample, uint32_t position, uint32_t channel) {
  uint32_t halves[2];
  for (uint32_t lower = 0; lower < 2; ++lower) {
    const Philox4 w = random_block(key, sample, position, channel / 8 + lower * 0x80000000u);
    const uint32_t all[8] = {w[0] % 65536, w[0] / 65536, w[1] % 65536, w[1] / 65536,
                             w[2] % 65536, w[2] / 65536, w[3] % 65536, w[3] / 65536};
    halves[lower] = all[channel % 8];
  }
  return uniform_from(halves[0] * 65536 + halves[1]);
}

// 0 or 1 / (1 - p), for (B*T,C).
inline std::vector<double> dropout_factors_reference(int64_t B, int64_t T, int64_t C, float p,
                                                     uint64_t seed, uint64_t step, uint32_t site,
                                                     uint64_t first_sample) {
  const RandomKey key = random_key(seed, step, site);
  std::vector<double> factors;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t c = 0; c < C; ++c) {
        const bool kept = channel_uniform(key, first_sample + static_cast<uint64_t>(b),
                                          static_cast<uint32_t>(t), static_cast<uint32_t>(c)) >= p;
        factors.push_back(kept ? 1.0 / (1.0 - static_cast<double>(p)) : 0.0);
      }
  return factors;
}

// The same for the probabilities (B,H,T,T) of attention: key j of head h is channel h 2^20 + j.
inline std::vector<double> attention_factors_reference(int64_t B, int64_t H, int64_t T, float p,
                                                       uint64_t seed, uint64_t step, uint32_t site,
                                                       uint64_t first_sample) {
  const RandomKey key = random_key(seed, step, site);
  std::vector<double> factors;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < T; ++i)
        for (int64_t j = 0; j < T; ++j) {
          const int64_t channel = h * (int64_t{1} << 20) + j;
          const bool kept =
              channel_uniform(key, first_sample + static_cast<uint64_t>(b),
                              static_cast<uint32_t>(i), static_cast<uint32_t>(channel)) >= p;
          factors.push_back(kept ? 1.0 / (1.0 - static_cast<double>(p)) : 0.0);
        }
  return factors;
}

}  // namespace snug::test
