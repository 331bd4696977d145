// A step of a long short-term memory.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace snug::test {

template <class T>
struct LstmStep {
  std::vector<T> h, c;
};

// gates (n,4h), a row [i | f | g | o]; c_before (n,h) or empty.
template <class T>
LstmStep<T> lstm_cell_reference(const std::vector<T>& gates, const std::vector<T>& c_before,
                                size_t h) {
  using std::exp;
  using std::tanh;
  const auto sigmoid = [](T x) { return T(1) / (T(1) + exp(-x)); };
  LstmStep<T> step;
  for (size_t k = 0; k < gates.size() / 4; ++k) {
    const size_t at = k / h * 4 * h + k % h;
    const T i = sigmoid(gates[at]), f = sigmoid(gates[at + h]), g = tanh(gates[at + 2 * h]),
            o = sigmoid(gates[at + 3 * h]);
    const T c = (c_before.empty() ? T(0) : f * c_before[k]) + i * g;
    step.c.push_back(c);
    step.h.push_back(o * tanh(c));
  }
  return step;
}

}  // namespace snug::test
