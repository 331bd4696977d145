// Transcendentals that vectorise: plain arithmetic on float, no branches, no library calls, so that
// a loop over them compiles to vector code and gives the same bits in its body and in its tail.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace snug {

// e^x, relative error below 2.5e-7 (2 ulp); exactly 0 below -87.33, capped at e^88.37 above.
// Range reduction x = n ln2 + r, |r| <= ln2/2, then a degree-6 polynomial (Cephes' expf constants).
inline float fast_exp(float x) {
  const float z = std::min(std::max(x, -87.33f), 88.37f);
  const float n = std::floor(z * 1.44269504088896341f + 0.5f);
  const float r = (z - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float scale =
      std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
  return x < -87.33f ? 0.0f : p * scale;
}

// Absolute error below 3e-7.
inline float fast_tanh(float x) {
  const float e = fast_exp(2.0f * std::min(std::max(x, -10.0f), 10.0f));
  return (e - 1.0f) / (e + 1.0f);
}

// Abramowitz and Stegun 7.1.26; absolute error below 7e-7 in float (1.5e-7 of it
// is the formula's).
inline float fast_erf(float x) {
  const float a = std::fabs(x);
  const float t = 1.0f / (1.0f + 0.3275911f * a);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float y = 1.0f - p * t * fast_exp(-a * a);
  return std::copysign(y, x);
}

}  // namespace snug
