// FP4 of bitsandbytes: a sign and three bits for 0, 1/16, 2, 3, 4, 6, 8 and 12, over 12. Its codes
// 0 and 8 are both zero: what lies just above 0 has code 8, as its path on the CPU has it.
#include "quant/codec.h"

namespace snug {
namespace {

constexpr float kUnits[8] = {0, 0.0625f, 8, 12, 4, 6, 2, 3};  // by code
constexpr uint8_t kRising[8] = {0, 1, 6, 7, 4, 5, 2, 3};      // codes in order of value

constexpr CodeBook fp4_book() {
  float sorted[16]{};
  uint8_t codes[16]{};
  for (int k = 0; k < 8; ++k) {
    const uint8_t down = kRising[7 - k], up = kRising[k];
    sorted[k] = down == 0 ? 0.0f : -kUnits[down] / 12.0f;
    codes[k] = static_cast<uint8_t>(down == 0 ? 0 : down | 8);
    sorted[8 + k] = kUnits[up] / 12.0f;
    codes[8 + k] = up == 0 ? uint8_t{8} : up;
  }
  return make_book(sorted, codes, 16);
}
constexpr CodeBook kBook = fp4_book();

}  // namespace

Codec fp4_row() {
  return {"fp4", 4, 64, false, true, ScaleRule::absmax, 1, &kBook};
}

}  // namespace snug
