// Dropout factors, one value at a time from the definition of the random key.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/rng.h"

namespace snug::test {

// 0 or 1 / (1 - p), for (B*T,C).
inline std::vector<double> dropout_factors_reference(int64_t B, int64_t T, int64_t C, float p,
                                                     uint64_t seed, uint64_t step, uint32_t site,
                                                     uint64_t first_sample) {
  const RandomKey key = random_key(seed, step, site);
  std::vector<double> factors;
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t)
      for (int64_t c = 0; c < C; ++c) {
        const Philox4 block = random_block(key, first_sample + static_cast<uint64_t>(b),
                                           static_cast<uint32_t>(t), static_cast<uint32_t>(c / 4));
        const bool kept = uniform_from(block[static_cast<size_t>(c % 4)]) >= p;
        factors.push_back(kept ? 1.0 / (1.0 - static_cast<double>(p)) : 0.0);
      }
  return factors;
}

}  // namespace snug::test
