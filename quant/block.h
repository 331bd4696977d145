// A block of floats to codes and back: what ops do for every block of a tensor, and what a loop that
// holds its state in codes does for the block it works on. Contract and arithmetic: quant/codec.h.
//
//   float m[256];
//   decode_block(spec, m, codes, scale, 256);      // ... update m ...
//   encode_block(spec, m, 256, codes, scale);
//
// They run in the caller's thread, allocate nothing and do not throw. n is at most the block; of
// 4-bit codecs an odd n leaves the lower half of the last byte as the code of 0.
#pragma once

#include "engine/core/rng.h"
#include "quant/codec.h"

namespace snug {

// Numbers for stochastic rounding: a value between two entries becomes the upper one with the
// probability of its distance from the lower one, so that the mean is kept. Element first + i of
// the tensor has word (first + i) % 4 of block (first + i) / 4 of `key`, whatever is coded with it.
struct Draws {
  RandomKey key;
  int64_t first = 0;  // the element that the block begins with
};

// `scales`: spec.codec->scales() floats. draws null: to nearest. book: for codecs without their
// own.
void encode_block(const CodeSpec& spec, const float* x, int64_t n, uint8_t* codes, float* scales,
                  const Draws* draws = nullptr, const CodeBook* book = nullptr);
void decode_block(const CodeSpec& spec, float* y, const uint8_t* codes, const float* scales,
                  int64_t n, const CodeBook* book = nullptr);

// The same in pieces, for blocks that do not fit in a buffer: extremes of all pieces, the scale of
// them, then the codes of each piece, whose first element is even in its block.

// Extremes of a block as integers: in any order of elements the same, and NaNs are not lost.
struct BlockExtremes {
  uint32_t largest = 0;                              // bits of |x|
  int32_t low = 0x7fffffff, high = -0x7fffffff - 1;  // float_key
  constexpr void add(float x) {
    const uint32_t a = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
    const int32_t key = float_key(x);
    largest = a > largest ? a : largest;
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
};

// What the codes of a block are computed with.
struct BlockScale {
  float scale = 0, zero = 0;    // kept: the second one by min_max alone
  float factor = 0, shift = 0;  // x * factor + shift; rule peak divides by the scale instead
};
constexpr bool is_finite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}
constexpr float at_least(float x, float floor) {  // a NaN stays
  return x < floor ? floor : x;
}
// To the nearest whole number, halves to even.
constexpr float round_to_even(float x) {
  constexpr float kShift = 8388608.0f;  // 2^23: above it floats are whole
  if (x >= kShift || x <= -kShift || x != x) return x;
  return x < 0 ? (x - kShift) + kShift : (x + kShift) - kShift;
}
constexpr float floor_of(float x) {
  const float whole = round_to_even(x);
  return whole > x ? whole - 1.0f : whole;
}

constexpr BlockScale scale_of(ScaleRule rule, float peak, const BlockExtremes& e) {
  constexpr float kLeastNormal = 0x1p-126f;
  const float largest = std::bit_cast<float>(e.largest);
  if (rule == ScaleRule::absmax) return {largest, 0, 1.0f / at_least(largest, 1e-38f), 0};
  if (rule == ScaleRule::peak) return {at_least(largest, 1e-12f) / peak, 0, 0, 0};
  if (rule == ScaleRule::integer) {
    if (e.largest == 0) return {0, 0, 1, 0};
    const float scale = at_least(largest, 1e-36f);
    return {scale, 0, peak / scale, 0};
  }
  const float low = float_of_key(e.low), high = float_of_key(e.high);
  if (!is_finite(low) || !is_finite(high)) return {std::bit_cast<float>(0x7fc00000u), 0, 0, 0};
  if (low == high) return {high, 0, 0, 1};
  const float range = high - low;
  const float scale =
      at_least(is_finite(range) ? range / peak : high / peak - low / peak, kLeastNormal);
  const float zero = round_to_even(-low / scale);
  return {scale, zero, 1.0f / scale, zero};
}

// x of a block as the numbers that its entries are.
constexpr float scaled(ScaleRule rule, const BlockScale& s, float x) {
  return rule == ScaleRule::peak ? x / s.scale : x * s.factor;
}

// Whole numbers of the rules integer and min_max as codes. `u` of [0, 1): to a neighbour; negative:
// to nearest.
constexpr uint8_t whole_code(ScaleRule rule, const BlockScale& s, float v, float u) {
  if (v != v) return 0;
  float q = 0;
  if (u < 0) {
    q = round_to_even(v);
  } else {
    const float lower = floor_of(v);
    q = u < v - lower ? lower + 1.0f : lower;
  }
  if (rule == ScaleRule::integer) {
    q = q < -127.0f ? -127.0f : (q > 127.0f ? 127.0f : q);
    return static_cast<uint8_t>(static_cast<int8_t>(q));
  }
  q += s.shift;
  return static_cast<uint8_t>(q < 0.0f ? 0.0f : (q > 255.0f ? 255.0f : q));
}
constexpr float value_of_whole(ScaleRule rule, float scale, float zero, float unit, uint8_t code) {
  constexpr float kNearOverflow = 0x1p120f, kLargest = 0x1.fffffep127f;
  if (rule == ScaleRule::integer) {
    const float q = static_cast<float>(static_cast<int8_t>(code));
    return scale > kNearOverflow ? q * (scale * unit) : q * scale * unit;
  }
  const float y = (static_cast<float>(code) - zero) * scale;
  return y > kLargest ? kLargest : (y < -kLargest ? -kLargest : y);
}

// The entry of two neighbours that `u` chooses for v, whose nearest entry is known. Books are any
// indexed by [].
template <class Floats>
constexpr int drawn_entry(const Floats& sorted, int size, int nearest, float v, float u) {
  const int lower = v < sorted[nearest] ? nearest - 1 : nearest;
  if (lower < 0) return 0;
  if (lower + 1 >= size) return size - 1;
  const float gap = sorted[lower + 1] - sorted[lower];
  return u * gap < v - sorted[lower] ? lower + 1 : lower;
}

void add_extremes(BlockExtremes& e, const float* x, int64_t n);
void encode_piece(const Codec& codec, const CodeBook& book, const BlockScale& s, const float* x,
                  int64_t n, uint8_t* codes, const Draws* draws);
void decode_piece(const Codec& codec, const CodeBook& book, float scale, float zero, float* y,
                  const uint8_t* codes, int64_t n);

}  // namespace snug
