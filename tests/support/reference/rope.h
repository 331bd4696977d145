// Rotary position embedding in transformers' terms: x cos + rotate_half(x) sin of the first R
// channels, cos and sin of angles twice beside each other.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace snug::test {

struct RopeSizes {
  size_t t, h, g, d;
};

// x (B*t,(h+2g)d) -> y. An angle is the float product that transformers makes, as it stands there.
// starts: of every row its document's first place, or empty: 0.
template <class T>
std::vector<T> rope_reference(const std::vector<T>& x, const RopeSizes& s,
                              const std::vector<float>& inverse_frequencies, double factor,
                              double position, const std::vector<double>& starts = {}) {
  const size_t half = inverse_frequencies.size(), rotary = 2 * half, width = (s.h + 2 * s.g) * s.d;
  std::vector<T> y = x;
  for (size_t row = 0; row < x.size() / width; ++row) {
    const double p = position + static_cast<double>(row % s.t) - (starts.empty() ? 0 : starts[row]);
    for (size_t head = 0; head < s.h + s.g; ++head) {
      const size_t at = row * width + head * s.d;
      for (size_t j = 0; j < rotary; ++j) {
        const float angle = static_cast<float>(p) * inverse_frequencies[j % half];
        const T turned = j < half ? -x[at + j + half] : x[at + j - half];
        y[at + j] = x[at + j] * (std::cos(static_cast<double>(angle)) * factor) +
                    turned * (std::sin(static_cast<double>(angle)) * factor);
      }
    }
  }
  return y;
}

}  // namespace snug::test
