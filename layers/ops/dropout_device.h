// The mask of dropout in kernels (engine/simt): the bits of layers/ops/dropout_mask.h.
#pragma once

#include "engine/core/rng.h"
#include "engine/memory/step_state.h"
#include "engine/simt/random.h"
#include "layers/ops/dropout_mask.h"

namespace snug {

// Those that one draw gives.
inline constexpr int kDrawnChannels = 8;

// What a launch knows of a mask; the rest is in the StepState.
struct MaskConstants {
  explicit MaskConstants(const DropoutSpec& spec)
      : threshold(dropout_threshold(spec.p)), site(spec.site), kept(dropout_kept(spec.p)) {}
  uint32_t threshold, site;
  float kept;
};

inline namespace SIMT_SIDE {

struct MaskKey {
  uint32_t k0, k1;
  uint64_t first_sample;
};

__device__ inline MaskKey mask_key(const StepState& state, uint32_t site) {
  const simt::RandomWords k =
      simt::random_key_words(state.seed, static_cast<uint64_t>(state.step), site);
  return {k.w[0], k.w[1], static_cast<uint64_t>(state.first_sample)};
}

// Of eight channels, bit i is of channel 8 channel8 + i: kept by its upper half, and open where
// that equals the bound's and the lower half has a say.
struct UpperBits {
  uint32_t kept, open;
};
__device__ inline simt::RandomWords mask_words(const MaskKey& key, int64_t sample, int64_t position,
                                               uint32_t block) {
  const uint64_t s = key.first_sample + static_cast<uint64_t>(sample);
  return simt::random_words(block, static_cast<uint32_t>(position), static_cast<uint32_t>(s),
                            static_cast<uint32_t>(s >> 32), key.k0, key.k1);
}
__device__ inline uint32_t half_of(const simt::RandomWords& u, int i) {
  return u.w[i / 2] >> (i % 2 * 16) & 0xffffu;
}
__device__ inline UpperBits upper_eight(const MaskKey& key, int64_t sample, int64_t position,
                                        int64_t channel8, uint32_t threshold) {
  const simt::RandomWords u = mask_words(key, sample, position, static_cast<uint32_t>(channel8));
  const uint32_t upper = threshold >> 16;
  UpperBits bits{};
  for (int i = 0; i < 8; ++i) {
    bits.kept |= (half_of(u, i) >= upper ? 1u : 0u) << i;
    bits.open |= (half_of(u, i) == upper ? 1u : 0u) << i;
  }
  if ((threshold & 0xffffu) == 0) bits.open = 0;
  return bits;
}
// Bit i: the lower half of channel 8 channel8 + i is below that of the bound.
__device__ inline uint32_t below_eight(const MaskKey& key, int64_t sample, int64_t position,
                                       int64_t channel8, uint32_t threshold) {
  const simt::RandomWords u =
      mask_words(key, sample, position, static_cast<uint32_t>(channel8) | kLowerHalves);
  uint32_t below = 0;
  for (int i = 0; i < 8; ++i) below |= (half_of(u, i) < (threshold & 0xffffu) ? 1u : 0u) << i;
  return below;
}

// Bit i says whether channel 8 channel8 + i is kept. The second draw is made once in 8192 calls.
__device__ inline uint32_t keep_eight(const MaskKey& key, int64_t sample, int64_t position,
                                      int64_t channel8, uint32_t threshold) {
  const UpperBits bits = upper_eight(key, sample, position, channel8, threshold);
  if (bits.open == 0) return bits.kept;
  return bits.kept & ~(bits.open & below_eight(key, sample, position, channel8, threshold));
}

// Bit i: channel + i is kept. N is 1, 4 or 8, and `channel` a multiple of it.
template <int N>
__device__ inline uint32_t keep_bits(const MaskKey& key, int64_t sample, int64_t position,
                                     int64_t channel, uint32_t threshold) {
  const uint32_t bits = keep_eight(key, sample, position, channel / 8, threshold);
  return bits >> (channel % 8) & ((1u << N) - 1);
}

// Chosen, not multiplied: a dropped infinity is 0.
__device__ inline float dropped(float x, float kept, uint32_t bits, int i) {
  return (bits >> i) & 1u ? x * kept : 0.0f;
}

}  // namespace SIMT_SIDE
}  // namespace snug
