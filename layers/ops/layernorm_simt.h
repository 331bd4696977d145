// The kernels of layers/ops/layernorm.h for engine/simt: the same mathematics, dtypes, accumulation
// and aliasing, the dropped copy included.
//
// Numerics  float throughout; the variance takes a second pass over the row. A lane sums every 32nd
//           vector of a row, then the warp in pairs: rows are summed in another order than on the
//           CPU. Sums over rows: a thread of a chunk in order, then the threads that share its
//           columns, then the chunks.
// Memory    backward with a wanted dweight or dbias: `partial` of layernorm_backward_chunks(N) 2 C
//           floats.
// Traffic   forward reads x once from memory (again from the cache) and writes y: 2 e bytes an
//           element of e bytes. Backward reads dy and x and writes dx: 3 e, 4 e adding, one more
//           for a dropped copy; a block reads as many rows as it has warps for the sums over rows,
//           then from the cache for dx. Partial sums are 16 C bytes a chunk, of at most 512 chunks.
// Launches  backward: one, and one that adds the chunks. Rows of more than 8192 columns take one
//           for dx, one for every 8192 columns of the sums, and the one that adds the chunks.
// Determinism  equal bits for any order of threads and blocks; sums over rows depend on `threads`.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include <algorithm>

#include "engine/core/units.h"
#include "layers/ops/layernorm.h"

namespace snug {

template <class Queue>
void layernorm_forward_on(Queue& queue, const View& y, const View& mean, const View& rstd,
                          const View& x, const View& weight, const View& bias, float eps,
                          int threads = 256);

// Into how many pieces backward cuts the rows: by their number alone. Four blocks for each
// multiprocessor of a large device.
inline int64_t layernorm_backward_chunk_rows(int64_t rows) {
  return std::max<int64_t>(16, ceil_div(rows, 512));
}
inline int64_t layernorm_backward_chunks(int64_t rows) {
  return ceil_div(rows, layernorm_backward_chunk_rows(rows));
}

template <class Queue>
void layernorm_backward_on(Queue& queue, const View& dx, bool add_dx, const GradView& dweight,
                           const GradView& dbias, const View& partial, const View& dy,
                           const View& x, const View& weight, const View& mean, const View& rstd,
                           const DroppedCopy& dropped = {}, int threads = 256);

}  // namespace snug
