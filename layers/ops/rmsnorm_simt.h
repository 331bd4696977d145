// The kernels of layers/ops/rmsnorm.h for engine/simt: the same mathematics, dtypes, accumulation
// and aliasing.
//
// Numerics  float throughout. A lane sums every 32nd vector of a row, then the warp in pairs:
// another
//           order than on the CPU. Sums over rows: a thread of a chunk in order, then the threads
//           that share its columns, then the chunks.
// Memory    backward with a wanted dweight: `partial` of rmsnorm_backward_chunks(M) C floats.
// Traffic   2 e bytes an element of e bytes forward, 3 e backward, 4 e adding; what a row is read
// for
//           the second time comes from the cache. Partial sums are 8 C bytes a chunk, of at most
//           512.
// Launches  backward: one, and one that adds the chunks. Rows of more than 8192 columns take one
//           for dx, one for every 8192 columns of the sums, and the one that adds the chunks.
// Determinism  equal bits for any order of threads and blocks; sums over rows depend on `threads`.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "layers/ops/layernorm_simt.h"
#include "layers/ops/rmsnorm.h"

namespace snug {

template <class Queue>
void rmsnorm_forward_on(Queue& queue, const View& y, const View& rstd, const View& x,
                        const View& weight, float eps, bool unit_offset, const HeadRows& heads,
                        int threads = 256);

// As layernorm's.
inline int64_t rmsnorm_backward_chunks(int64_t rows) {
  return layernorm_backward_chunks(rows);
}

template <class Queue>
void rmsnorm_backward_on(Queue& queue, const View& dx, bool add_dx, const GradView& dweight,
                         const View& partial, const View& dy, const View& x, const View& weight,
                         const View& rstd, bool unit_offset, const HeadRows& heads,
                         int threads = 256);

}  // namespace snug
