// The kernels of layers/ops/int8_linear.h for engine/simt: the same bits.
//
// Queue     simt::Queue of the side that is linked. Shapes have been checked.
// Memory    `to`: the workspace of the op's contract; `beyond` and `counts` with a threshold alone.
#pragma once

#include "engine/core/view.h"
#include "engine/seams/weight_codes.h"

namespace snug {

struct Int8Input {
  View codes;   // (N, int8_width(K)) u8
  View scales;  // (N) f32
  View beyond;  // (N, int8_width(K) / 32) i32: a bit an outlier
  View counts;  // (N) i32 of outliers
};

template <class Queue>
void int8_rows_on(Queue& queue, const Int8Input& to, const View& x, float threshold,
                  int threads = 128);

// Columns [first, first + rows) of y.
template <class Queue>
void int8_product_on(Queue& queue, const View& y, int64_t first, const Int8Input& input,
                     const View& x, const Int8Weight::Rows& weight, const View& bias);

}  // namespace snug
