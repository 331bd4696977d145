// The product of a gate and a branch.
#pragma once

#include <cstddef>
#include <vector>

namespace snug::test {

// gate_up (n,2f), a row [gate | up] -> y (n,f) = act(gate) up.
template <class T, class F>
std::vector<T> gated_activation_reference(const std::vector<T>& gate_up, size_t f, F&& act) {
  std::vector<T> y;
  for (size_t row = 0; row < gate_up.size(); row += 2 * f)
    for (size_t j = 0; j < f; ++j) y.push_back(act(gate_up[row + j]) * gate_up[row + f + j]);
  return y;
}

}  // namespace snug::test
