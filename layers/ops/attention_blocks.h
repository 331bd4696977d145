// The arithmetic of attention on fp32 blocks in scratch, one table per instruction set.
//
// A tile is (keys, queries): keys are rows, queries are lanes, rows kAttentionBlock floats apart.
// So the softmax over keys runs down the columns without a horizontal step, the keys and values are
// only ever the broadcast operand of a product, and neither needs a transpose.
#pragma once

#include <cstdint>

#include "engine/core/rng.h"

namespace snug {

inline constexpr int64_t kAttentionBlock = 64;  // queries and keys of a tile
inline constexpr int64_t kAttentionLanes = 16;  // lane counts are multiples of this

struct AttentionBlocks {
  // c(m,n) = [c(m,n) +] sum_k a[m * a_row + k * a_col] * b[k * ldb + n]; N a multiple of 16.
  // Every element is one chain of fused multiply-adds over k = 0 .. K-1.
  void (*product)(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
                  const float* b, int64_t ldb, int64_t M, int64_t N, int64_t K, bool add);
  // One step of the running softmax, per lane: top' = max(top, s), s = e^(s - top'),
  // factor = e^(top - top'), sum = sum * factor + the new s. Returns whether a factor is not 1.
  bool (*softmax_step)(float* s, int64_t keys, int64_t lanes, float* top, float* sum,
                       float* factor);
  // c(r,lane) *= factor(lane).
  void (*scale_lanes)(float* c, int64_t rows, int64_t lanes, const float* factor);
  // s *= mask, both tiles.
  void (*apply_mask)(float* s, const float* mask, int64_t keys, int64_t lanes);
  // In: s scores, dp. Out: s = mask * p, dp = p * (mask * dp - delta), p = e^(s - lse). mask may be
  // null.
  void (*backward_tile)(float* s, float* dp, const float* mask, int64_t keys, int64_t lanes,
                        const float* lse, const float* delta);
  // mask(key,lane) = 0 if the uniform of (position query0 + lane, channel 4 * channel4 + key) is
  // below `dropout`, else `kept`.
  void (*dropout_mask)(float* mask, int64_t keys, int64_t lanes, RandomKey key, uint64_t sample,
                       uint32_t query0, uint32_t channel4, float dropout, float kept);
};

const AttentionBlocks& attention_blocks_avx2();
const AttentionBlocks& attention_blocks_avx512();
bool attention_blocks_has_avx512();
// The widest this machine has. Both give the same bits.
const AttentionBlocks& attention_blocks();

}  // namespace snug
