// The kernels of layers/ops/layernorm.h for engine/simt: the same mathematics, dtypes, accumulation
// and aliasing; the dropped copy is a launch of its own.
//
// Numerics  float throughout; the variance takes a second pass over the row. A lane sums every 32nd
//           vector of a row, then the warp in pairs: rows are summed in another order than on the
//           CPU. Sums over rows: a warp of a chunk in order, then warps, then chunks in order.
// Memory    backward with a wanted dweight or dbias: `partial` of layernorm_backward_chunks(N) * 2
// C
//           floats.
// Traffic   forward reads x once from memory (again from the cache) and writes y. Backward reads dy
//           and x once for dx and once more for dweight and dbias.
// Determinism  equal bits for any order of threads and blocks; sums over rows depend on `threads`.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "engine/kernels/row_chunks.h"
#include "layers/ops/layernorm.h"

namespace snug {

template <class Queue>
void layernorm_forward_on(Queue& queue, const View& y, const View& mean, const View& rstd,
                          const View& x, const View& weight, const View& bias, float eps,
                          int threads = 256);

// Into how many pieces backward cuts the rows: by their number alone.
inline int64_t layernorm_backward_chunks(int64_t rows) {
  return row_chunks(rows);
}

template <class Queue>
void layernorm_backward_on(Queue& queue, const View& dx, bool add_dx, const GradView& dweight,
                           const GradView& dbias, const View& partial, const View& dy,
                           const View& x, const View& weight, const View& mean, const View& rstd,
                           int threads = 256);

}  // namespace snug
