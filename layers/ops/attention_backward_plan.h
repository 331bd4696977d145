// What the backward pass of attention on the CPU takes together, and its scratch. Internal to the
// folder.
#pragma once

#include <algorithm>

#include "engine/core/units.h"
#include "layers/ops/attention_fused.h"
#include "layers/ops/attention_pack.h"
#include "layers/ops/attention_parts.h"

namespace snug::attention_backward_parts {

inline constexpr int64_t kBlock = kAttentionBlock;

// Two ways through the tiles with the same bits, because every element of a gradient is one chain
// over the same terms in the same order:
//   one pass    a thread takes a key/value head with all its query heads and keeps the gradients of
//               all its keys and values in scratch: 5 products a tile;
//   two passes  a thread takes one block of queries (for dq) or of keys (for dk, dv): 7 products a
//               tile, but many more pieces, for few heads or many threads.
inline bool use_two_passes(int64_t kv_heads, int threads) {
  return 5 * ceil_div(kv_heads, threads) * threads > 7 * kv_heads;
}

inline constexpr int64_t kHalf = kBlock / 2, kMostQueries = 4, kMostKeys = 32;
// Tile-matrix units: tiles of as many blocks of queries and of keys are made before a product sums
// over them, so that sums are loaded and stored a quarter as often.
inline constexpr int64_t kStage = 4;
inline constexpr int64_t kMostPiece = 4;  // blocks of keys of a piece of two passes

struct QueryBlock {
  float *turned, *dout_turned;    // (units of D, queries)
  float *columns, *dout_columns;  // (units of queries, D)
  float *dq, *lse2, *delta;
  int32_t* sees;  // fused: the first key of each query, then the end of them
};
struct KeyBlock {
  float *rows, *columns, *v_rows;  // (keys, units of D), (units of keys, D)
};
struct Scratch {
  QueryBlock q[kMostQueries];
  KeyBlock k[kMostKeys];
  float *rows, *columns, *dk, *dv, *factor;
  float *s[kStage], *dp[kStage];   // of blocks of queries: scores and dp, then p and ds
  float *scores, *dp_lanes;        // fused: of kFusedLanes queries, beside those
  float* ds_keys[kStage][kStage];  // of blocks of keys, of queries
  float* slope;                    // of capped scores, of the tile at hand; null: none
  uint16_t* keep;
  int64_t floats;
};

// How much is in scratch at once.
struct Plan {
  bool two_passes, pairs, dropout, capped;
  int64_t step;              // of the products
  int64_t D, queries, keys;  // blocks that a piece of work takes together
  int64_t stage;             // blocks of either that are summed over at once
  bool resident;             // keys: all of a head
  int64_t key_rows;          // rows of dk and dv

  int64_t wide() const { return round_up(D, kAttentionLanes); }
  int64_t units() const { return in_steps(units_of(D, pairs), step); }
  int64_t tall() const { return in_steps(D, step); }  // rows of dq
  // Floats between rows in units along D: those of floats serve as columns too.
  int64_t row_units() const { return pairs ? round_up(units(), 8) : wide(); }
  // Keys in units along the keys are the A of a product: by columns, or turned to rows.
  bool turned() const { return step > 1; }
};

inline Plan make_plan(const AttentionBlocks& blocks, const AttentionSpec& spec, int64_t B,
                      int64_t tokens, int threads) {
  Plan p{};
  const int64_t heads = B * spec.G, count = ceil_div(tokens, kBlock);
  p.two_passes = use_two_passes(heads, threads);
  p.pairs = blocks.pairs;
  p.step = blocks.step;
  p.dropout = spec.dropout > 0;
  p.capped = spec.softcap > 0;
  p.D = spec.D;
  // In one pass the pieces of a head are one thread's, so their number does not count.
  p.queries = blocks_together(heads, count, p.two_passes ? threads : 0, kMostQueries);
  p.stage = std::min(p.step > 1 ? kStage : 1, p.queries);
  p.resident = p.step > 1 && !p.two_passes && count <= kMostKeys;
  p.keys = p.resident ? count : p.stage;
  if (p.two_passes) p.keys = std::max(p.keys, blocks_together(heads, count, threads, kMostPiece));
  p.key_rows = p.two_passes ? p.keys * kBlock : keys_in_steps(blocks, tokens);
  return p;
}

inline Scratch make_scratch(float* data, const Plan& plan) {
  const int64_t wide = plan.wide(), turned = plan.units() * kBlock;
  const int64_t columns = units_of(kBlock, plan.pairs) * wide;
  ScratchPieces p(data);
  Scratch s{};
  for (int64_t g = 0; g < plan.queries; ++g) {
    s.q[g].turned = p.take(turned);
    s.q[g].dout_turned = p.take(turned);
    s.q[g].columns = p.take(columns);
    s.q[g].dout_columns = p.take(columns);
    s.q[g].dq = p.take(kBlock * plan.tall());
    s.q[g].lse2 = p.take(kBlock);
    s.q[g].delta = p.take(kBlock);
    s.q[g].sees = plan.turned() ? reinterpret_cast<int32_t*>(p.take(2 * kBlock)) : nullptr;
  }
  for (int64_t g = 0; g < plan.keys; ++g) {
    s.k[g].rows = p.take(kBlock * plan.row_units());
    s.k[g].columns = plan.turned() ? p.take(plan.tall() * kHalf)
                     : plan.pairs  ? p.take(columns)
                                   : s.k[g].rows;
    s.k[g].v_rows = p.take(kBlock * plan.row_units());
  }
  s.rows = plan.pairs ? p.take(kBlock * plan.row_units()) : nullptr;
  s.columns = plan.turned() ? p.take(columns) : nullptr;
  // Scores of tile-matrix units stay in L1, and what is kept of them is half as long.
  const int64_t row = plan.turned() ? kHalf : kBlock;
  s.scores = plan.turned() ? p.take(kBlock * kFusedLanes) : nullptr;
  s.dp_lanes = plan.turned() ? p.take(kBlock * kFusedLanes) : nullptr;
  for (int64_t g = 0; g < plan.stage; ++g) {
    s.s[g] = p.take(kBlock * row);
    s.dp[g] = p.take(kBlock * row);
    for (int64_t k = 0; k < plan.stage; ++k)
      s.ds_keys[k][g] = plan.pairs ? p.take(kHalf * kBlock) : s.dp[g];
  }
  s.dk = p.take(plan.key_rows * wide);
  s.dv = p.take(plan.key_rows * wide);
  s.factor = p.take(kBlock);
  s.slope = plan.capped ? p.take(kBlock * kBlock) : nullptr;
  s.keep =
      plan.dropout ? reinterpret_cast<uint16_t*>(p.take(kBlock * kAttentionWords / 2)) : nullptr;
  s.floats = p.used();
  return s;
}

}  // namespace snug::attention_backward_parts
