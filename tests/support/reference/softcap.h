// The soft cap of logits, from the formula.
#pragma once

#include <complex>
#include <vector>

namespace snug::test {

template <class T>
std::vector<T> softcap_reference(const std::vector<T>& x, double cap) {
  using std::tanh;
  std::vector<T> y;
  for (const T& value : x) y.push_back(cap * tanh(value / cap));
  return y;
}

}  // namespace snug::test
