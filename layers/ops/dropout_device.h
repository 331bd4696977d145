// The mask of dropout in kernels (engine/simt): the bits of layers/ops/dropout_mask.h.
#pragma once

#include "engine/memory/step_state.h"
#include "engine/simt/random.h"
#include "layers/ops/dropout_mask.h"

namespace snug {

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

// One block of four channels: bit i says whether channel 4 channel4 + i is kept.
__device__ inline uint32_t keep_four(const MaskKey& key, int64_t sample, int64_t position,
                                     int64_t channel4, uint32_t threshold) {
  const uint64_t s = key.first_sample + static_cast<uint64_t>(sample);
  const simt::RandomWords u =
      simt::random_words(static_cast<uint32_t>(channel4), static_cast<uint32_t>(position),
                         static_cast<uint32_t>(s), static_cast<uint32_t>(s >> 32), key.k0, key.k1);
  uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) bits |= (u.w[i] >= threshold ? 1u : 0u) << i;
  return bits;
}

// Bit i: channel + i is kept. N is 1, or 4 or 8 and `channel` a multiple of 4.
template <int N>
__device__ inline uint32_t keep_bits(const MaskKey& key, int64_t sample, int64_t position,
                                     int64_t channel, uint32_t threshold) {
  uint32_t bits = keep_four(key, sample, position, channel / 4, threshold);
  if constexpr (N == 1) bits = (bits >> (channel % 4)) & 1u;
  if constexpr (N == 8) bits |= keep_four(key, sample, position, channel / 4 + 1, threshold) << 4;
  return bits;
}

// Chosen, not multiplied: a dropped infinity is 0.
__device__ inline float dropped(float x, float kept, uint32_t bits, int i) {
  return (bits >> i) & 1u ? x * kept : 0.0f;
}

}  // namespace SIMT_SIDE
}  // namespace snug
