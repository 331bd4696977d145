// The bf16 rows of row_loops_avx512.cpp where the CPU rounds to bf16 by itself: two or three
// instructions less of some fourteen a vector of layer normalisation. The same bits.
// Compiled for AVX-512 with BF16 whatever the flags of the build: called only where the CPU has it.
// Headers come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "layers/ops/row_loops.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
#endif

namespace snug {
namespace {

// In this order: each uses what the ones before define.
#define SNUG_WIDE_BF16
#include "engine/kernels/wide_avx512.h"
//
#include "engine/kernels/wide.h"
#include "layers/ops/row_counters_avx512.h"
//
#include "layers/ops/row_loops_activation.h"
#include "layers/ops/row_loops_drop.h"
#include "layers/ops/row_loops_norm.h"

}  // namespace

ActivationLoops<bf16> activation_loops_avx512_bf16(int place) {
  return kActivationLoops<bf16>[place];
}

template <class W>
NormLoops<bf16, W> norm_loops_avx512_bf16() {
  return {norm_forward<bf16, W>, norm_backward<bf16, W>};
}
template NormLoops<bf16, bf16> norm_loops_avx512_bf16();
template NormLoops<bf16, float> norm_loops_avx512_bf16();

DropLoops<bf16> drop_loops_avx512_bf16() {
  return {drop_row_loop<bf16>, add_dropped_loop<bf16>};
}

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
