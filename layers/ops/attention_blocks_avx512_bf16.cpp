// Compiled for AVX-512 whatever the flags of the build: called only where the CPU has it. Headers
// come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "layers/ops/attention_blocks.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
#endif

namespace snug {
namespace {

#include "layers/ops/attention_vectors_avx512.h"
// Over those.
#include "layers/ops/attention_vectors_bf16.h"
// Over both.
#include "layers/ops/attention_blocks_body.h"

constexpr AttentionBlocks kBlocks = {
    "avx512_bf16", true,         1,           nullptr,       nullptr,
    product,       softmax_step, scale_lanes, backward_tile, dropout_bits};

}  // namespace

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const AttentionBlocks& attention_blocks_avx512_bf16() {
  return kBlocks;
}

}  // namespace snug
