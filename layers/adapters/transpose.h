// A matrix on the host, turned: files hold some weights as (in,out), adapters see (out,in).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace snug {

// (rows,columns) to (columns,rows).
inline std::vector<float> transpose(const std::vector<float>& values, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(values.size()) / columns;
  std::vector<float> out(values.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      out[static_cast<size_t>(j * rows + i)] = values[static_cast<size_t>(i * columns + j)];
  return out;
}

}  // namespace snug
