// The inner loops of the kernels, once per instruction set: AVX2 and AVX-512 give the same bits.
// They take pointers and run in the caller's thread; ops choose one before they share the work.
//
// T, X, Y    float, bf16 or f16. Arithmetic is float, rounded once. y may be x where both have the
//            same type.
// Why        GCC 12 turns the rounding to 16 bits into scalar code in loops of this kind: written
//            out they are three to eight times as fast.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"

namespace snug {

template <class Y, class X>
struct PairLoops {
  void (*cast)(Y* y, const X* x, int64_t n);  // y = x
  void (*add)(Y* y, const X* x, int64_t n);   // y += x
};
template <class Y, class X>
PairLoops<Y, X> pair_loops();

template <class T>
struct FloatLoops {
  void (*sum)(T* y, const T* a, const T* b, int64_t n);  // y = a + b
  void (*scale)(T* x, float factor, int64_t n);          // x *= factor
  // sum[c] += x[row][c], rows in order; rows lie `stride` elements apart, n columns.
  void (*add_rows)(float* sum, const T* x, int64_t rows, int64_t stride, int64_t n);
};
template <class T>
FloatLoops<T> float_loops();

// In double: four accumulators of four lanes, folded in a fixed tree, then the last n % 16 in
// order.
double sum_of_squares(const float* x, int64_t n);

// The two versions, for the choice above.
template <class Y, class X>
PairLoops<Y, X> pair_loops_avx2();
template <class Y, class X>
PairLoops<Y, X> pair_loops_avx512();
template <class T>
FloatLoops<T> float_loops_avx2();
template <class T>
FloatLoops<T> float_loops_avx512();
double sum_of_squares_avx2(const float* x, int64_t n);
double sum_of_squares_avx512(const float* x, int64_t n);

}  // namespace snug
