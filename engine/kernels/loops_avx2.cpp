#include <immintrin.h>

#include "engine/kernels/loops.h"

namespace snug {
namespace {

#include "engine/kernels/wide_avx2.h"
// The types of the one before are used by the other.
#include "engine/kernels/wide.h"
// And both by the loops.
#include "engine/kernels/loops_body.h"

}  // namespace

template <class Y, class X>
PairLoops<Y, X> pair_loops_avx2() {
  return {cast_loop<Y, X>, add_loop<Y, X>};
}
template <class T>
FloatLoops<T> float_loops_avx2() {
  return {sum_loop<T>, scale_loop<T>, add_rows_loop<T>};
}

#define SNUG_LOOPS(Y)                             \
  template PairLoops<Y, float> pair_loops_avx2(); \
  template PairLoops<Y, bf16> pair_loops_avx2();  \
  template PairLoops<Y, f16> pair_loops_avx2();   \
  template FloatLoops<Y> float_loops_avx2();
SNUG_LOOPS(float)
SNUG_LOOPS(bf16)
SNUG_LOOPS(f16)
#undef SNUG_LOOPS

double sum_of_squares_avx2(const float* x, int64_t n) {
  return square_sum(x, n);
}

}  // namespace snug
