// Attention of bf16 on tile-matrix units, fused: while the vector units take the powers of one unit
// of work, the tile unit makes the scores of the next and adds the values of the last.
//
// A unit is 16 queries (lanes) by up to kAttentionBlock keys (rows). What a tile instruction reads
// or writes is contiguous: 16 rows of 16 units of 4 bytes (attention_blocks.h). Internal to the
// folder.
#pragma once

#include <cstdint>

#include "engine/core/rng.h"

namespace snug {

inline constexpr int64_t kFusedTile = 16;  // rows and units of a tile
inline constexpr int64_t kFusedTileFloats = kFusedTile * kFusedTile;

struct FusedForwardUnit {
  const float* k;       // (keys, units of D), rows k_ld apart
  const float* v;       // (D, units of keys), rows v_ld apart
  const float* q;       // (units of D, 16)
  float* out;           // (D, 16): sums, added to
  float *top, *sum;     // of the 16 queries
  const int32_t* sees;  // null: all keys; else the first key of each query, then the end of them
  int32_t first_key;    // position of row 0
  int32_t keys;         // a multiple of 16, at most kAttentionBlock
  uint32_t query, channel;  // of dropout: position of lane 0, channel of row 0
};

struct FusedForward {
  int64_t units, tall;  // of D, in tiles: units of 16 pairs, 16 rows
  int64_t k_ld, v_ld;
  float factor2;
  float* s;        // scratch of 2 units of scores
  float* p;        // and of their powers
  uint16_t* keep;  // null: no dropout
  RandomKey key;
  uint64_t sample;
  uint32_t threshold;
  // Rows that are packed next, asked for on the way: up to `rows` rows of three arrays, `ask` with
  // every unit.
  const char* ahead[3];
  int64_t ahead_stride, ahead_bytes, ahead_rows, ask;
};

// Up to kAttentionBlock keys (rows) by kFusedLanes queries (lanes).
inline constexpr int64_t kFusedLanes = 32;
struct FusedBackwardTile {
  const float *s, *dp;        // (keys, queries), rows kFusedLanes apart
  float *p, *ds;              // (keys, units of queries), rows half a block apart
  float* ds_keys;             // (units of keys, queries), rows a block apart
  const float *lse2, *delta;  // of the queries
  const int32_t* sees;        // as above
  int32_t first_key;
  int64_t keys;  // a multiple of 2
  float factor2, kept;
  const uint16_t* keep;  // of lane 0, as AttentionBlocks has it; null: no dropout
};

struct AttentionFused {
  void (*forward)(const FusedForward& pass, const FusedForwardUnit* units, int64_t n);
  // AttentionBlocks::backward_tile from one place to another: scores that stay in L1, and what
  // products of several tiles take.
  void (*backward)(const FusedBackwardTile& tile);
};

const AttentionFused& attention_fused();
const AttentionFused& attention_fused_emulated();

}  // namespace snug
