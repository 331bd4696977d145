// Counter-based random numbers in kernels: Philox4x32-10 with the keys of engine/core/rng.h, the
// same words. Apart from it because that one is made of arrays and functions of the host.
#pragma once

#include "engine/simt/simt.h"

namespace snug::simt {
inline namespace SIMT_SIDE {

struct RandomWords {
  uint32_t w[4];
};

__device__ inline RandomWords random_words(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3,
                                           uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// random_key of engine/core/rng.h: words 0 and 1.
__device__ inline RandomWords random_key_words(uint64_t seed, uint64_t step, uint32_t site) {
  return random_words(static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), site,
                      0x736e7567u, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

}  // namespace SIMT_SIDE
}  // namespace snug::simt
