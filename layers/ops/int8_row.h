// Formulas of layers/ops/int8_linear.h that loops and kernels share.
#pragma once

#include <bit>
#include <cstdint>

#include "engine/core/dtype.h"

namespace snug {

inline constexpr int64_t kInt8Step = 32;  // K is rounded up to it: a word of marks of outliers
inline constexpr float kInt8Unit = 1.0f / 127.0f, kInt8SquareUnit = 1.0f / (127.0f * 127.0f);

constexpr int64_t int8_width(int64_t K) {
  return (K + kInt8Step - 1) / kInt8Step * kInt8Step;
}

// |h| as an integer, in whose order NaNs are the largest.
constexpr uint32_t magnitude_bits(float h) {
  return std::bit_cast<uint32_t>(h) & 0x7fffffffu;
}

// What the codes of a row are multiplied by, of its largest magnitude. Of zeros, and of a row that is
// not finite, it makes codes of 0.
constexpr float int8_factor(uint32_t largest) {
  return largest == 0 || largest >= 0x7f800000u ? 0.0f : 127.0f / std::bit_cast<float>(largest);
}
constexpr float int8_scale(uint32_t largest) {
  return largest >= 0x7f800000u ? std::bit_cast<float>(0x7fc00000u) : std::bit_cast<float>(largest);
}

// To the nearest whole number, halves to even: of magnitudes below 2^22.
constexpr float int8_code(float scaled) {
  constexpr float kShift = 0x1.8p23f;
  return (scaled + kShift) - kShift;
}

constexpr float int8_value(int32_t sum, float row_scale, float weight_scale) {
  return static_cast<float>(sum) * (row_scale * weight_scale) * kInt8SquareUnit;
}

}  // namespace snug
