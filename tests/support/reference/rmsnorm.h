// Root mean square normalisation, row by row.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace snug::test {

template <class T>
struct RmsnormResult {
  std::vector<T> y, rstd;
};

// x (n,c), weight (c), to which `offset` is added. Of every `group` rows `count` are normalised,
// from `first` on; the others are 0 in y.
template <class T>
RmsnormResult<T> rmsnorm_reference(const std::vector<T>& x, const std::vector<T>& weight,
                                   double offset, double eps, size_t group = 1, size_t first = 0,
                                   size_t count = 1) {
  using std::sqrt;
  const size_t c = weight.size(), n = x.size() / c;
  RmsnormResult<T> r{std::vector<T>(x.size(), T(0)), {}};
  for (size_t i = 0; i < n; ++i) {
    if (i % group < first || i % group >= first + count) continue;
    T square = 0;
    for (size_t j = 0; j < c; ++j) square += x[i * c + j] * x[i * c + j];
    const T rstd = 1.0 / sqrt(square / static_cast<double>(c) + eps);
    for (size_t j = 0; j < c; ++j) r.y[i * c + j] = x[i * c + j] * rstd * (weight[j] + offset);
    r.rstd.push_back(rstd);
  }
  return r;
}

}  // namespace snug::test
