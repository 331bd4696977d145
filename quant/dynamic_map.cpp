// The dynamic map: seven decades with a fraction that is the finer the larger the value, so that
// small values of a block keep their order of magnitude. Signed for first moments, unsigned for
// second ones.
//   Decade i of 0..6 is cut into 2^i pieces (unsigned: 2^(i+1)) over [0.1, 1], whose middles are
//   taken times 10^(i-6), signed with their negatives; 0 and 1 are added. There is no -1.
// Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (2015); create_dynamic_map of
// bitsandbytes, in its arithmetic: float32, bounds by fused products from either end to the middle.
#include <algorithm>
#include <cmath>

#include "quant/codec.h"

namespace snug {
namespace {

constexpr int kDecades = 7;      // of 8 bits
constexpr int kFourDecades = 3;  // of 4 bits

// torch.linspace(0.1, 1, pieces + 1)[i]
float piece_bound(int i, int pieces) {
  const float step = (1.0f - 0.1f) / static_cast<float>(pieces);
  if (i < (pieces + 1) / 2) return std::fma(step, static_cast<float>(i), 0.1f);
  return std::fma(-step, static_cast<float>(pieces - i), 1.0f);
}

CodeBook dynamic_book(bool is_signed, int decades) {
  float values[kMaxCodes];
  int n = 0;
  constexpr float kAll[kDecades] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  const float* const scales = kAll + kDecades - decades;
  for (int i = 0; i < decades; ++i) {
    const int pieces = 1 << (is_signed ? i : i + 1);
    for (int k = 0; k < pieces; ++k) {
      const float mean = (piece_bound(k, pieces) + piece_bound(k + 1, pieces)) / 2.0f;
      const float value = scales[i] * mean;
      values[n++] = value;
      if (is_signed) values[n++] = -value;
    }
  }
  values[n++] = 0.0f;
  values[n++] = 1.0f;
  std::sort(values, values + n);
  return make_book(values, nullptr, n);
}

// In the middle of two entries torchao takes the upper one.
CodeBook ties_up(CodeBook book) {
  for (int k = 0; k + 1 < book.size; ++k) book.bounds[k] -= 1;
  return book;
}

}  // namespace

Codec dynamic_signed_row() {
  static const CodeBook book = dynamic_book(true, kDecades);
  return {"dynamic8", 8, 256, false, true, ScaleRule::absmax, 1, &book};
}
Codec dynamic_unsigned_row() {
  static const CodeBook book = dynamic_book(false, kDecades);
  return {"dynamic8_unsigned", 8, 256, false, false, ScaleRule::absmax, 1, &book};
}

// The states of torchao's AdamW4bit (torchao/optim/subclass_4bit.py): a dynamic map of 4 bits, and
// for squares sixteenths without 0, so that no square comes back as nothing.
// Li, Chen and Zhu, "Memory efficient optimizers with 4-bit states" (2023).
Codec dynamic4_row() {
  static const CodeBook book = ties_up(dynamic_book(true, kFourDecades));
  return {"dynamic4", 4, 128, false, true, ScaleRule::peak, 1, &book};
}
Codec linear4_unsigned_row() {
  static const CodeBook book = [] {
    float values[16];
    for (int k = 0; k < 16; ++k) values[k] = static_cast<float>(k + 1) / 16.0f;
    return ties_up(make_book(values, nullptr, 16));
  }();
  return {"linear4_unsigned", 4, 128, false, false, ScaleRule::peak, 1, &book};
}

}  // namespace snug
