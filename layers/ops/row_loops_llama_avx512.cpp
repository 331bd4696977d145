// What gated activation, RMS normalisation and rotary positions add to row_loops_avx512.cpp.
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
//
#include "layers/ops/row_loops_activation.h"
#include "layers/ops/row_loops_norm.h"
//
#include "layers/ops/row_loops_gated.h"
#include "layers/ops/row_loops_rms.h"
#include "layers/ops/row_loops_rope.h"

}  // namespace

template <class T>
GatedLoops<T> gated_loops_avx512(int place) {
  return kGatedLoops<T>[place];
}
template GatedLoops<float> gated_loops_avx512(int);
template GatedLoops<bf16> gated_loops_avx512(int);
template GatedLoops<f16> gated_loops_avx512(int);

template <class T, class W>
RmsLoops<T, W> rms_loops_avx512() {
  return {rms_forward<T, W>, rms_backward<T, W>};
}
template RmsLoops<float, float> rms_loops_avx512();
template RmsLoops<bf16, bf16> rms_loops_avx512();
template RmsLoops<bf16, float> rms_loops_avx512();
template RmsLoops<f16, f16> rms_loops_avx512();
template RmsLoops<f16, float> rms_loops_avx512();

template <class T>
RopeLoops<T> rope_loops_avx512() {
  return {rope_angles, rope_rotate<T>};
}
template RopeLoops<float> rope_loops_avx512();
template RopeLoops<bf16> rope_loops_avx512();
template RopeLoops<f16> rope_loops_avx512();

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
