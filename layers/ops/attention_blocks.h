// The arithmetic of attention on packed blocks in scratch, one table per instruction set.
//
// A tile is (keys, queries): keys are rows, queries are lanes, rows kAttentionBlock units apart.
// So the softmax over keys runs down the columns without a horizontal step, the keys and values are
// only ever the broadcast operand of a product, and neither needs a transpose.
//
// A unit is 4 bytes: a float, or, where `pairs` is set, two bf16 that are neighbours along the
// index a product sums over (the first in the low half). The layouts are then the same for both.
#pragma once

#include <cstdint>

#include "engine/core/dtype.h"
#include "engine/core/rng.h"
#include "engine/memory/context.h"

namespace snug {

inline constexpr int64_t kAttentionBlock = 64;  // queries and keys of a tile
inline constexpr int64_t kAttentionLanes = 16;  // lane counts are multiples of this
// Dropout of a tile: one bit a query, 16 lanes a word, kAttentionWords words a key.
inline constexpr int64_t kAttentionWords = kAttentionBlock / 16;

struct AttentionFused;  // attention_fused.h

// What a product sums over: blocks of `each` units, the last of `last`, that begin a_step and
// b_step floats apart.
struct BlocksOfSum {
  int64_t blocks, a_step, b_step, each, last;
};

struct AttentionBlocks {
  const char* name;
  bool pairs;
  // Of tile-matrix units, otherwise 1 and null: M, N and K of a product are multiples of `step`,
  // a_col is 1, and a thread calls `enter` before its first product and `leave` after its last.
  int64_t step;
  void (*enter)();
  void (*leave)();
  // c(m,n) = [c(m,n) +] sum_k a[m * a_row + k * a_col] * b[k * ldb + n] over K units; N a multiple
  // of 16. Every element is one chain over k = 0 .. K-1: of fused multiply-adds, or of VDPBF16PS.
  void (*product)(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
                  const float* b, int64_t ldb, int64_t M, int64_t N, int64_t K, bool add);
  // One step of the running softmax, per lane, in powers of two: top' = max(top, factor2 * s),
  // p = 2^(factor2 * s - top'), shrink = 2^(top - top'), sum = sum * shrink + the new p. In place
  // of the scores come units along the keys: p where the bit in `keep` is set (null: everywhere),
  // else 0; an odd last key is paired with zeros. Returns whether a shrink is not 1.
  bool (*softmax_step)(float* s, int64_t keys, int64_t lanes, float factor2, float* top, float* sum,
                       float* shrink, const uint16_t* keep);
  // c(r,lane) *= factor(lane).
  void (*scale_lanes)(float* c, int64_t rows, int64_t lanes, const float* factor);
  // In: s scores, dp. With p = 2^(factor2 * s - lse2), m = kept where the bit in `keep` is set,
  // else 0 (keep null: m = 1) and ds = p * (m * dp - delta). Out, units along the queries: s = p
  // where m is not 0, else 0; dp = ds. With pairs also ds_keys = ds in units along the keys.
  void (*backward_tile)(float* s, float* dp, float* ds_keys, int64_t keys, int64_t lanes,
                        float factor2, const float* lse2, const float* delta, const uint16_t* keep,
                        float kept);
  // Bit (key,lane) of keep = channel_number() of (position query0 + lane, channel + key) is at
  // least `threshold`; `channel` a multiple of 8.
  void (*dropout_bits)(uint16_t* keep, int64_t keys, int64_t lanes, RandomKey key, uint64_t sample,
                       uint32_t query0, uint32_t channel, uint32_t threshold);
  // The same over blocks of K, null where step is 1.
  void (*product_of_blocks)(float* c, int64_t ldc, const float* a, int64_t a_row, const float* b,
                            int64_t ldb, int64_t M, int64_t N, const BlocksOfSum& sum,
                            bool add) = nullptr;
  // Whole passes instead of the parts above but the products: where step is above 1, else null.
  const AttentionFused* fused = nullptr;
};

const AttentionBlocks& attention_blocks_avx2();
const AttentionBlocks& attention_blocks_avx512();
const AttentionBlocks& attention_blocks_avx512_bf16();
// Products on the tile-matrix unit, and the same with that unit in software: for tests, on a
// machine with AVX512_BF16, which the rest takes.
const AttentionBlocks& attention_blocks_amx();
const AttentionBlocks& attention_blocks_amx_emulated();
bool attention_blocks_has_amx();
bool attention_blocks_has_avx512();
bool attention_blocks_has_avx512_bf16();
// The fastest for activations of this dtype. For bf16 the tile-matrix unit, then VDPBF16PS where it
// is faster than fp32 (AMD; Intel runs it at half that rate); otherwise fp32, whose two forms give
// the same bits.
const AttentionBlocks& attention_blocks(DType dtype);
// What a plan records of an attention op: "attention", the dtype its products multiply, and what
// multiplies it; forms of the same bits have the same text. Empty but on plan.
Name attention_variant(const Context& ctx, const AttentionBlocks& blocks, bool cudnn);

}  // namespace snug
