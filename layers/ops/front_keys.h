// Keys and values of virtual tokens, which every sequence begins with, in place of what a layer makes there:
// prefix tuning (layers/adapters/prefix_tuning.cpp).
//
// Math      forward   y[row][column + c] = table[tokens[row] - first][at + c] for c < width, where
//                     tokens[row] >= first; other rows and columns stay
//           backward  dtable[k][at + c] (+)= sum over these rows, where tokens[row] = first + k, of
//                     dy[row][column + c]; then these of dy are 0, as what the layer made was not read
// Shapes    y, dy (B*T,Q); tokens (B,T) i32, all below first + K; table, dtable (K,W).
// dtypes    y, dy, table one of f32, bf16, f16, the same for all; dtable any of these.
// Writes    backward with add false assigns all of dtable, zeros beside the columns. dtable undefined: dy alone.
// Numerics  copies; sums in float in the order of rows, one rounding.
// Traffic   tokens, and of the rows of virtual tokens their columns: twice forward, twice backward.
// Determinism  equal bits for any number of threads.
// Errors    shape: columns that are not there. unsupported: another dtype.
#pragma once

#include "engine/memory/context.h"

namespace snug {

struct FrontKeys {
  int64_t first = 0;   // id of the first virtual token
  int64_t column = 0;  // of y
  int64_t at = 0;      // column of the table
  int64_t width = 0;
};

void front_keys_forward(Context& ctx, const View& y, const View& tokens, const View& table,
                        const FrontKeys& f);
void front_keys_backward(Context& ctx, const GradView& dtable, const View& dy, const View& tokens,
                         int64_t K, const FrontKeys& f);

}  // namespace snug
