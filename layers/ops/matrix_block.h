// A block of a matrix: what joins the small matrices of adapters that read one input into one product,
// and takes their gradients out of its result (layers/parts/adapter.h).
//
// Math      block_put   m[row+i][col+j] = factor b[i][j]
//           block_take  b[i][j] (+)= factor m[row+i][col+j]
// Shapes    m (M,K), b (r,c) with row + r <= M and col + c <= K.
// dtypes    each one of f32, bf16, f16; the b of block_take f32 or bf16.
// Aliasing  none.
// Numerics  float, one rounding.
// Traffic   b and as many elements of m, read or written; b is read too where it is added to.
// Determinism  equal bits for any number of threads.
// Errors    shape: a block that does not lie in the matrix. unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"

namespace snug {

// Where a block lies.
struct BlockPlace {
  int64_t row = 0, col = 0;
  float factor = 1;
};

void block_put(Context& ctx, const View& m, const View& b, BlockPlace place);
void block_take(Context& ctx, const GradView& b, const View& m, BlockPlace place);

}  // namespace snug
