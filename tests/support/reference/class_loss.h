// PyTorch's losses of a row: cross_entropy, binary_cross_entropy_with_logits and mse_loss, the last
// two as means over its elements.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/support/gradient.h"

namespace snug::test {

template <class T>
T cross_entropy_reference(const std::vector<T>& z, size_t target) {
  using std::exp;
  using std::log;
  T sum = 0;
  for (const T& x : z) sum += exp(x - real_of(z[0]));
  return log(sum) + real_of(z[0]) - z[target];
}

template <class T>
T binary_cross_entropy_reference(const std::vector<T>& z, const std::vector<double>& target) {
  using std::exp;
  using std::log;
  T sum = 0;
  for (size_t k = 0; k < z.size(); ++k)
    sum -=
        target[k] * log(1.0 / (1.0 + exp(-z[k]))) + (1 - target[k]) * log(1.0 / (1.0 + exp(z[k])));
  return sum / static_cast<double>(z.size());
}

template <class T>
T squared_error_reference(const std::vector<T>& z, const std::vector<double>& target) {
  T sum = 0;
  for (size_t k = 0; k < z.size(); ++k) sum += (z[k] - target[k]) * (z[k] - target[k]);
  return sum / static_cast<double>(z.size());
}

}  // namespace snug::test
