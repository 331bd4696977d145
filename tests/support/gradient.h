// Gradients by complex steps: for f analytic, f(x + ih) = f(x) + ih f'(x) + O(h^2), and no
// difference is taken, so h can be so small that the rest vanishes and the imaginary part / h is
// f'(x) to the last digits of double. Squire and Trapp, "Using complex variables to estimate
// derivatives of real functions", SIAM Review 40 (1998).
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "tests/support/values.h"

namespace snug::test {

using Complex = std::complex<double>;
inline constexpr double kComplexStep = 1e-100;

// Scalar functions of a reference template: T is double or Complex. Comparisons and branches use
// the real part, as the real function does.
inline double real_of(double x) {
  return x;
}
inline double real_of(Complex x) {
  return x.real();
}
inline double error_function(double x) {
  return std::erf(x);
}
// Exact for the tiny imaginary parts of a complex step.
inline Complex error_function(Complex x) {
  const double slope = 2 / std::sqrt(std::acos(-1.0)) * std::exp(-x.real() * x.real());
  return {std::erf(x.real()), x.imag() * slope};
}

template <class T>
std::vector<T> widen(const Values& v) {
  return std::vector<T>(v.begin(), v.end());
}

// Gradient of the scalar f: (const std::vector<Complex>&) -> Complex at x. With `indices`, only
// those components, in that order.
template <class F>
Values complex_step_gradient(F&& f, const Values& x, const std::vector<size_t>& indices) {
  std::vector<Complex> z = widen<Complex>(x);
  Values gradient;
  gradient.reserve(indices.size());
  for (const size_t i : indices) {
    z[i] = {x[i], kComplexStep};
    gradient.push_back(f(z).imag() / kComplexStep);
    z[i] = {x[i], 0};
  }
  return gradient;
}
template <class F>
Values complex_step_gradient(F&& f, const Values& x) {
  std::vector<size_t> all(x.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return complex_step_gradient(f, x, all);
}

// At most `limit` indices spread over [0, n), the ends included: for tensors whose full gradient
// would take long. `pick` selects the same elements of the result under test.
inline std::vector<size_t> sample_indices(size_t n, size_t limit) {
  std::vector<size_t> indices;
  const size_t count = n < limit ? n : limit;
  for (size_t k = 0; k < count; ++k) indices.push_back(count < 2 ? 0 : k * (n - 1) / (count - 1));
  return indices;
}
inline Values pick(const Values& v, const std::vector<size_t>& indices) {
  Values out;
  for (const size_t i : indices) out.push_back(v.at(i));
  return out;
}

// sum of weights[i] * y[i]: the scalar whose gradient a backward gives when dy = weights.
template <class T>
T weighted_sum(const std::vector<T>& y, const Values& weights) {
  T sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * weights[i];
  return sum;
}

}  // namespace snug::test
