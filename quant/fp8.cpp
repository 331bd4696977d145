// 8-bit floats, rounded to nearest even: e4m3fn (largest 448, no infinity) and e5m2 (57344).
// Micikevicius et al., "FP8 Formats for Deep Learning" (2022). The largest magnitude of a block
// becomes the largest number of the format, as in torchao's AdamWFp8.
#include "quant/codec.h"

namespace snug {
namespace {

// With `mantissa` bits below 7 - mantissa of exponent. Codes above the last are NaN or infinite.
CodeBook float_book(int mantissa, int last, uint8_t nan) {
  const int exponents = 7 - mantissa, bias = (1 << (exponents - 1)) - 1;
  const auto value = [&](int code) {
    const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
    float x = static_cast<float>(exponent == 0 ? fraction : fraction | 1 << mantissa);
    for (int e = (exponent == 0 ? 1 : exponent) - bias - mantissa; e != 0; e += e < 0 ? 1 : -1)
      x *= e < 0 ? 0.5f : 2.0f;
    return x;
  };
  float sorted[kMaxCodes];
  uint8_t codes[kMaxCodes];
  int n = 0;
  for (int code = last; code >= 0; --code, ++n) {
    sorted[n] = -value(code);
    codes[n] = static_cast<uint8_t>(code | 0x80);
  }
  for (int code = 0; code <= last; ++code, ++n) {
    sorted[n] = value(code);
    codes[n] = static_cast<uint8_t>(code);
  }
  CodeBook book = make_book(sorted, codes, n, true);
  book.bounds[last] = float_key(-0.0f);  // up to -0 the lower zero
  book.zero = 0;
  book.nan = nan;
  return book;
}

}  // namespace

Codec fp8_e4m3_row() {
  static const CodeBook book = float_book(3, 0x7e, 0x7f);
  return {"fp8_e4m3", 8, 256, true, true, ScaleRule::peak, 448, &book};
}
Codec fp8_e5m2_row() {
  static const CodeBook book = float_book(2, 0x7b, 0x7f);
  return {"fp8_e5m2", 8, 256, true, true, ScaleRule::peak, 57344, &book};
}

}  // namespace snug
