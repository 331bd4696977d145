// What gated activation, RMS normalisation and rotary positions add to row_loops_avx512_bf16.cpp.
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
//
#include "layers/ops/row_loops_activation.h"
#include "layers/ops/row_loops_norm.h"
//
#include "layers/ops/row_loops_gated.h"
#include "layers/ops/row_loops_rms.h"
#include "layers/ops/row_loops_rope.h"

}  // namespace

GatedLoops<bf16> gated_loops_avx512_bf16(int place) {
  return kGatedLoops<bf16>[place];
}

template <class W>
RmsLoops<bf16, W> rms_loops_avx512_bf16() {
  return {rms_forward<bf16, W>, rms_backward<bf16, W>};
}
template RmsLoops<bf16, bf16> rms_loops_avx512_bf16();
template RmsLoops<bf16, float> rms_loops_avx512_bf16();

RopeLoops<bf16> rope_loops_avx512_bf16() {
  return {rope_angles, rope_rotate<bf16>};
}

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
