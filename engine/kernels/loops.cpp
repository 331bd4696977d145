#include "engine/kernels/loops.h"

#include "engine/core/isa.h"

namespace snug {

template <class Y, class X>
PairLoops<Y, X> pair_loops() {
  return use_avx512() ? pair_loops_avx512<Y, X>() : pair_loops_avx2<Y, X>();
}
template <class T>
FloatLoops<T> float_loops() {
  return use_avx512() ? float_loops_avx512<T>() : float_loops_avx2<T>();
}

#define SNUG_PAIR(Y)                         \
  template PairLoops<Y, float> pair_loops(); \
  template PairLoops<Y, bf16> pair_loops();  \
  template PairLoops<Y, f16> pair_loops();   \
  template FloatLoops<Y> float_loops();
SNUG_PAIR(float)
SNUG_PAIR(bf16)
SNUG_PAIR(f16)
#undef SNUG_PAIR

double sum_of_squares(const float* x, int64_t n) {
  return use_avx512() ? sum_of_squares_avx512(x, n) : sum_of_squares_avx2(x, n);
}

}  // namespace snug
