// Layer normalisation, row by row.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace snug::test {

template <class T>
struct LayernormResult {
  std::vector<T> y, mean, rstd;
};

// x (n,c), weight (c), bias (c) or empty.
template <class T>
LayernormResult<T> layernorm_reference(const std::vector<T>& x, const std::vector<T>& weight,
                                       const std::vector<T>& bias, double eps) {
  using std::sqrt;
  const size_t c = weight.size(), n = x.size() / c;
  LayernormResult<T> r{std::vector<T>(x.size()), std::vector<T>(n), std::vector<T>(n)};
  for (size_t i = 0; i < n; ++i) {
    T mean = 0, square = 0;
    for (size_t j = 0; j < c; ++j) mean += x[i * c + j];
    mean /= static_cast<double>(c);
    for (size_t j = 0; j < c; ++j) square += (x[i * c + j] - mean) * (x[i * c + j] - mean);
    const T rstd = 1.0 / sqrt(square / static_cast<double>(c) + eps);
    for (size_t j = 0; j < c; ++j) {
      r.y[i * c + j] = (x[i * c + j] - mean) * rstd * weight[j];
      if (!bias.empty()) r.y[i * c + j] += bias[j];
    }
    r.mean[i] = mean;
    r.rstd[i] = rstd;
  }
  return r;
}

}  // namespace snug::test
