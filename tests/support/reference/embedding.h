// Token, type and position embedding.
#pragma once

#include <cstddef>
#include <vector>

namespace snug::test {

// wte (Vp,c), wpe (P,c) or empty, tokens (B,t) row by row -> y (B*t,c); starts: of every token its
// document's first place, or empty: 0; types (B,t) and wtt (K,c), or empty: none.
template <class T>
std::vector<T> embedding_reference(const std::vector<T>& wte, const std::vector<T>& wpe,
                                   const std::vector<double>& tokens, size_t t, size_t c,
                                   size_t position, const std::vector<double>& starts = {},
                                   const std::vector<double>& types = {},
                                   const std::vector<T>& wtt = {}) {
  std::vector<T> y;
  for (size_t row = 0; row < tokens.size(); ++row)
    for (size_t j = 0; j < c; ++j) {
      const size_t start = starts.empty() ? 0 : static_cast<size_t>(starts[row]);
      T value = wte[static_cast<size_t>(tokens[row]) * c + j];
      if (!wtt.empty()) value += wtt[(types.empty() ? 0 : static_cast<size_t>(types[row])) * c + j];
      if (!wpe.empty()) value += wpe[(position + row % t - start) * c + j];
      y.push_back(value);
    }
  return y;
}

}  // namespace snug::test
