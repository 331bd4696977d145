// Compiled for AVX-512 whatever the flags of the build: called only where the CPU has it. Headers
// come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "layers/ops/row_loops.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

namespace snug {
namespace {

// In this order: each uses what the ones before define.
#include "engine/kernels/wide_avx512.h"
//
#include "engine/kernels/wide.h"
#include "layers/ops/row_counters_avx512.h"
//
#include "layers/ops/row_loops_activation.h"
#include "layers/ops/row_loops_drop.h"
#include "layers/ops/row_loops_norm.h"
#include "layers/ops/row_loops_softmax.h"

}  // namespace

template <class T>
ActivationLoops<T> activation_loops_avx512(int place) {
  return kActivationLoops<T>[place];
}
template ActivationLoops<float> activation_loops_avx512(int);
template ActivationLoops<bf16> activation_loops_avx512(int);
template ActivationLoops<f16> activation_loops_avx512(int);

template <class T, class W>
NormLoops<T, W> norm_loops_avx512() {
  return {norm_forward<T, W>, norm_backward<T, W>};
}
template NormLoops<float, float> norm_loops_avx512();
template NormLoops<bf16, bf16> norm_loops_avx512();
template NormLoops<bf16, float> norm_loops_avx512();
template NormLoops<f16, f16> norm_loops_avx512();
template NormLoops<f16, float> norm_loops_avx512();

template <class T>
DropLoops<T> drop_loops_avx512() {
  return {drop_row_loop<T>, add_dropped_loop<T>};
}
template DropLoops<float> drop_loops_avx512();
template DropLoops<bf16> drop_loops_avx512();
template DropLoops<f16> drop_loops_avx512();

SoftmaxLoops softmax_loops_avx512() {
  return {max_loop, exp_sum_loop};
}
template <class T>
SoftmaxGradient<T> softmax_gradient_avx512() {
  return softmax_gradient_loop<T>;
}
template SoftmaxGradient<float> softmax_gradient_avx512();
template SoftmaxGradient<bf16> softmax_gradient_avx512();
template SoftmaxGradient<f16> softmax_gradient_avx512();

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
