// The sums of engine/kernels/kernels.h for engine/simt: same mathematics and dtypes.
//
// Numerics  Sums are in another order than on the CPU: by chunks, warps and lanes. column_sum in
//           float, squares in double.
// Memory    column_sum: `partial` of row_chunks(N) * C floats. Squares: `partial` of
//           2 square_chunks(n) doubles.
// Determinism  equal bits for any order of threads and blocks; they depend on `threads`.
// Queue     simt::Queue of the side that is linked. Shapes have been checked. threads: of a block.
#pragma once

#include "engine/kernels/row_chunks.h"
#include "engine/seams/grad_sink.h"

namespace snug {

template <class Queue>
void column_sum_on(Queue& queue, const GradView& out, const View& partial, const View& x,
                   int threads = 256);

inline constexpr int64_t kSquareElements = 64 * 1024;  // of a chunk, a block each
inline int64_t square_chunks(int64_t n) {
  return ceil_div(n, kSquareElements);
}

// loss_scale, read on the queue's side, is above 0.
template <class Queue>
void sum_of_squares_and_finite_on(Queue& queue, const View& x, const View& partial,
                                  const View& state, int64_t first_element = 0, int threads = 256);

}  // namespace snug
