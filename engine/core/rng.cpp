#include "engine/core/rng.h"

#include <cmath>

namespace snug {

void normal_pair(uint32_t a, uint32_t b, double* z0, double* z1) {
  const double u = (static_cast<double>(a) + 1.0) * 0x1p-32;  // (0, 1]: the logarithm is finite
  const double v = static_cast<double>(b) * 0x1p-32;
  const double r = std::sqrt(-2.0 * std::log(u));
  *z0 = r * std::cos(2.0 * M_PI * v);
  *z1 = r * std::sin(2.0 * M_PI * v);
}

}  // namespace snug
