// The room for sums of chunks of rows (row_split.h) that a workspace takes: enough for any number of
// rows up to n, since a micro-batch may have fewer than planned, and fewer rows may make more chunks
// (513 rows are cut into 31, 512 into 32).
#pragma once

#include "engine/kernels/row_split.h"

namespace snug {

inline int64_t most_row_chunks(int64_t n) {
  return std::min<int64_t>(32, ceil_div(n, 16));
}

}  // namespace snug
