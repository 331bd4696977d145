// Some rows of a tensor.
#pragma once

#include <cstddef>
#include <vector>

namespace snug::test {

// x (N,c), index (M), -1 for a row of zeros -> y (M,c).
template <class T>
std::vector<T> rows_gather_reference(const std::vector<T>& x, const std::vector<double>& index,
                                     size_t c) {
  std::vector<T> y(index.size() * c, T(0));
  for (size_t m = 0; m < index.size(); ++m)
    for (size_t j = 0; index[m] >= 0 && j < c; ++j)
      y[m * c + j] = x[static_cast<size_t>(index[m]) * c + j];
  return y;
}

}  // namespace snug::test
