// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A value is a pure function of its key and counter, so it
// is the same under recompute, any split of the batch, any thread and any place.
#pragma once

#include <array>
#include <cstdint>

namespace snug {

using Philox4 = std::array<uint32_t, 4>;

inline Philox4 philox(Philox4 c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[0];
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// [0, 1) with 24 bits.
inline float uniform_from(uint32_t u) {
  return static_cast<float>(u >> 8) * 0x1p-24f;
}

// The key of training: (seed, step, site, sample in the global batch, position, channel). Step and
// site are folded with the seed into the 64-bit key; sample, position and the block of the channel
// are the counter.
struct RandomKey {
  uint32_t k0, k1;
};
inline RandomKey random_key(uint64_t seed, uint64_t step, uint32_t site) {
  const Philox4 k =
      philox({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), site, 0x736e7567u},
             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  return {k[0], k[1]};
}
inline Philox4 random_block(RandomKey key, uint64_t sample, uint32_t position, uint32_t block) {
  return philox(
      {block, position, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)}, key.k0,
      key.k1);
}

// The number of a channel, 32 bits, which a mask of dropout compares with a bound. Its upper 16
// bits are bits 16 (channel % 2) and up of word channel % 8 / 2 of block channel / 8; its lower 16
// bits lie at the same place of block channel / 8 + 2^31. A mask draws the second block only where
// upper bits equal those of its bound, once in 65536: so the generator, which bounds dropout, runs
// once for eight channels, and p keeps its 24 bits.
constexpr uint32_t kLowerHalves = 0x80000000u;
inline uint32_t channel_number(RandomKey key, uint64_t sample, uint32_t position,
                               uint32_t channel) {
  const auto half = [&](uint32_t block) {
    const uint32_t word = random_block(key, sample, position, block)[channel % 8 / 2];
    return word >> (channel % 2 * 16) & 0xffffu;
  };
  return half(channel / 8) << 16 | half(channel / 8 | kLowerHalves);
}
// channel_number() >= bound. A call, for loops of wide instructions that ask it seldom.
bool channel_at_least(RandomKey key, uint64_t sample, uint32_t position, uint32_t channel,
                      uint32_t bound);

// splitmix64: a cheap stateless mixer for seeds, not for training randomness.
inline uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Standard normal pair by Box-Muller from two uniforms, in double.
void normal_pair(uint32_t a, uint32_t b, double* z0, double* z1);

// out[2i], out[2i + 1] = (float)(z * std) of the pair from u[2i], u[2i + 1]: the very floats that
// normal_pair gives, about seven times as fast. Four pairs at a time are computed in double to
// within some units of the last place; where that leaves the rounding to float open, about once in
// four million, normal_pair decides.
void normal_floats(const uint32_t* u, int64_t pairs, double std, float* out);
// Elements 4 * first_block .. of the sequence of `key`: element j is lane j % 4 of block j / 4.
void normal_fill(RandomKey key, int64_t first_block, int64_t elements, double std, float* out);

}  // namespace snug
