// A row of the residual sum and a row of dropout: one implementation for the ops of that name and
// for the ops that do it on the way.
#pragma once

#include "engine/kernels/loops.h"
#include "layers/ops/dropout_mask.h"
#include "layers/ops/row_loops.h"

namespace snug {

// y = x + branch.
template <class V>
void add_row(V* y, const V* x, const V* branch, int64_t c) {
  float_loops<V>().sum(y, x, branch, c);
}

// y = x + dropout(branch).
template <class V>
void add_dropped_row(V* y, const V* x, const V* branch, const DropoutMask& mask, int64_t sample,
                     int64_t position, int64_t c) {
  drop_loops<V>().add(y, x, branch, mask.row(sample, position), c);
}

// y = dropout(x).
template <class V>
void drop_row(V* y, const V* x, const DropoutMask& mask, int64_t sample, int64_t position,
              int64_t c) {
  drop_loops<V>().drop(y, x, mask.row(sample, position), c);
}

}  // namespace snug
