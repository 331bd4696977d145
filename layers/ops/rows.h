// Some rows of a tensor, and their gradient back to where they lie: the first token of every
// sequence under a pooler, the masked positions under the head of a masked language model.
//
// Math      y[m][c] = x[index[m]][c], 0 where index[m] is -1: no row
//           dx[n][c] = or += dy[m][c] for the m with index[m] = n; where there is none 0 is
//           assigned or nothing added
// Shapes    x, dx (N,C); y, dy (M,C); index (M) i32, each value but -1 at most once.
// dtypes    x, y, dx, dy: one of f32, bf16, f16. Forward and an assigned dx are copies; add_dx adds
//           in float with one rounding.
// Accumulation  add_dx: rows that no index names keep their bits.
// Aliasing  none.
// Memory    backward: workspace (N) i32, which row of dy every row of dx has.
// Traffic   forward reads and writes M rows; backward reads M rows and writes N once, adding it
// reads
//           and writes M.
// Determinism  equal bits for any number of threads; no sums.
// Errors    data: an index outside [0,N) that is not -1; backward: one that is there twice. Before
//           anything is written. shape, unsupported: as everywhere.
#pragma once

#include "engine/memory/context.h"

namespace snug {

void rows_gather_forward(Context& ctx, const View& y, const View& x, const View& index);

void rows_gather_backward(Context& ctx, const View& dx, const View& dy, const View& index,
                          bool add_dx = false);

}  // namespace snug
