// tanh as soft caps on the CPU take it: written so that a loop over it becomes vectors. Relative error
// below 2e-7; NaN stays NaN. Internal to the folder.
#pragma once

#include <bit>
#include <cstdint>

namespace snug {

inline float softcap_tanh(float x) {
  const float a = __builtin_fabsf(x), z = x * x;
  // Around 0 an odd polynomial, else 1 - 2 / (e^(2a) + 1): S. Moshier's Cephes, tanhf and expf.
  float small = -5.70498872745e-3f * z + 2.06390887954e-2f;
  small = small * z - 5.37397155531e-2f;
  small = small * z + 1.33314422036e-1f;
  small = small * z - 3.33332819422e-1f;
  small = small * z * x + x;
  const float y = 2.0f * (a > 9.1f ? 9.1f : a);  // beyond it tanh is 1
  const float n = static_cast<float>(static_cast<int32_t>(y * 1.44269504088896341f + 0.5f));
  const float r = y - n * 0.693359375f - n * -2.12194440e-4f;
  float e = 1.9875691500e-4f * r + 1.3981999507e-3f;
  e = e * r + 8.3334519073e-3f;
  e = e * r + 4.1665795894e-2f;
  e = e * r + 1.6666665459e-1f;
  e = e * r + 5.0000001201e-1f;
  e = e * r * r + r + 1.0f;
  e *= std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  const float large = __builtin_copysignf(1.0f - 2.0f / (e + 1.0f), x);
  return a < 0.625f ? small : large;
}

}  // namespace snug
