// States and parameters that do not rest as floats: a loop decodes a piece of them, runs the rule on
// it and encodes it again. Kernels do the same with the bits of these loops (update.cu,
// update_resting.cu).
#pragma once

#include "engine/core/rng.h"
#include "optim/elementwise.h"
#include "quant/block.h"

namespace snug {

// The codec of a state, or null where the form has no codes.
const Codec* codec_of_state(StateForm form, bool squares);

// Of state k: apart from the sites of dropout, which count layers.
constexpr uint32_t state_site(int k) {
  return 0x53544100u + static_cast<uint32_t>(k);
}

// Of parameters in bf16 without a master.
inline constexpr uint32_t kWeightSite = 0x57475400u;

// `bits` of a float to one of its two neighbours in bf16, the upper one with the probability of the
// distance from the lower one; draw: 16 bits. What bf16 holds stays, infinities too; of a NaN comes
// one.
constexpr uint16_t bf16_at_random(uint32_t bits, uint32_t draw) {
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  const uint32_t quiet = (bits & 0x7fffffu) != 0 ? bits | 0x400000u : bits;
  return static_cast<uint16_t>((finite ? bits + draw : quiet) >> 16);
}

// n elements from element `first` of the flat range on, a multiple of 8: element e has 16 bits of
// word e % 8 / 2 of block e / 8.
void bf16_encode(RandomKey key, int64_t first, const float* x, int64_t n, bf16* y);
void bf16_decode(float* y, const bf16* x, int64_t n);

// n elements that begin a block.
void codes_decode(const CodeSpec& spec, float* y, const uint8_t* codes, const float* scales,
                  int64_t n);
void codes_encode(const CodeSpec& spec, const float* x, int64_t n, uint8_t* codes, float* scales);

}  // namespace snug
