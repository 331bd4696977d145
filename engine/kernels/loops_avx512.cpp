// Compiled for AVX-512 whatever the flags of the build: called only where the CPU has it. Headers
// come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "engine/kernels/loops.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

namespace snug {
namespace {

#include "engine/kernels/wide_avx512.h"
// The types of the one before are used by the other.
#include "engine/kernels/wide.h"
// And both by the loops.
#include "engine/kernels/loops_body.h"

}  // namespace

template <class Y, class X>
PairLoops<Y, X> pair_loops_avx512() {
  return {cast_loop<Y, X>, add_loop<Y, X>};
}
template <class T>
FloatLoops<T> float_loops_avx512() {
  return {sum_loop<T>, scale_loop<T>, add_rows_loop<T>};
}

#define SNUG_LOOPS(Y)                               \
  template PairLoops<Y, float> pair_loops_avx512(); \
  template PairLoops<Y, bf16> pair_loops_avx512();  \
  template PairLoops<Y, f16> pair_loops_avx512();   \
  template FloatLoops<Y> float_loops_avx512();
SNUG_LOOPS(float)
SNUG_LOOPS(bf16)
SNUG_LOOPS(f16)
#undef SNUG_LOOPS

double sum_of_squares_avx512(const float* x, int64_t n) {
  return square_sum(x, n);
}

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
