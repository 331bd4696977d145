// Sums over rows in kernels: rows are cut into chunks by their number alone, a launch sums each
// chunk into a row of a workspace, a second launch adds the chunks (row_chunks_kernel.h).
#pragma once

#include <algorithm>

#include "engine/core/units.h"

namespace snug {

inline int64_t row_chunk_rows(int64_t rows) {
  return std::max<int64_t>(16, ceil_div(rows, 256));
}
inline int64_t row_chunks(int64_t rows) {
  return ceil_div(rows, row_chunk_rows(rows));
}

}  // namespace snug
