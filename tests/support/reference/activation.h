// Activation functions of one argument.
#pragma once

#include <cmath>

#include "tests/support/gradient.h"

namespace snug::test {

template <class T>
T gelu_tanh_reference(T x) {
  using std::tanh;
  const double k = std::sqrt(2 / std::acos(-1.0));
  return 0.5 * x * (1.0 + tanh(k * (x + 0.044715 * x * x * x)));
}
template <class T>
T gelu_erf_reference(T x) {
  return 0.5 * x * (1.0 + error_function(x / std::sqrt(2.0)));
}
template <class T>
T relu_reference(T x) {
  return real_of(x) > 0 ? x : T(0);
}
template <class T>
T silu_reference(T x) {
  using std::exp;
  return x / (1.0 + exp(-x));
}
template <class T>
T tanh_reference(T x) {
  using std::tanh;
  return tanh(x);
}

}  // namespace snug::test
