// Columns folded onto fewer, and fewer laid out over more: what adapters with one small matrix read of a
// layer's input and add to what it makes (layers/adapters/miss.cpp, mora.cpp).
//
// Math      fold    u[n][j] = sum over the columns c of x, from `first` on `width` of them, with
//                   (c - first) mod r = j;  with wrap, the columns are taken from their beginning again
//                   until r divides their number
//           lay     y[n][first + c] += v[n][c mod r] for c < width;  with wrap, twice where fold counts
//                   a column twice.  Each is the other's transpose
//           Of r > width, columns of u behind the width are 0 without wrap, and those of v count for nothing
// Shapes    x, y (N,C); u, v (N,r) with r >= 1, with wrap r <= 2 width; first + width <= C.
// dtypes    one of f32, bf16, f16, the same for all.
// Aliasing  none.
// Numerics  float; fold in the order of columns, one rounding.
// Traffic   fold: width columns of x and u. lay: v, and width columns of y read and written.
// Determinism  equal bits for any number of threads.
// Errors    shape: columns that are not there. unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"

namespace snug {

struct FoldedColumns {
  int64_t first = 0, width = 0;
  bool wrap = false;
  // Of r columns, those that are counted twice.
  int64_t again(int64_t r) const { return wrap && width % r != 0 ? r - width % r : 0; }
};

void column_fold(Context& ctx, const View& u, const View& x, FoldedColumns columns);
// With `add` false the other columns of y stay, and these are assigned.
void column_lay(Context& ctx, const GradView& y, const View& v, FoldedColumns columns);

}  // namespace snug
