// What torch's generator on the CPU draws for uniform_() on f32, so that matrices which PEFT makes from a seed
// alone are the same here: mt19937 (Matsumoto and Nishimura, 1998), 24 bits a number, in the order of memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace snug {

class TorchUniform {
 public:
  explicit TorchUniform(uint64_t seed) : bits_(static_cast<uint32_t>(seed)) {}
  // (rows, columns) uniform in +- sqrt(6 / columns): torch's Kaiming initialisation with its gain of 2.
  std::vector<float> kaiming(int64_t rows, int64_t columns) {
    const double bound =
        std::sqrt(3.0) * (std::sqrt(2.0) / std::sqrt(static_cast<double>(columns)));
    const auto low = static_cast<float>(-bound), width = static_cast<float>(bound) - low;
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (float& x : values)
      x = static_cast<float>(static_cast<double>(bits_() & 0xffffffu) * 0x1p-24 *
                                 static_cast<double>(width) +
                             static_cast<double>(low));
    return values;
  }

 private:
  std::mt19937 bits_;
};

}  // namespace snug
