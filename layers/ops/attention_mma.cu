#include "engine/simt/reduce.h"
#include "layers/ops/attention_mma.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// Keys of a tile: as many as leave room for the sums in the registers.
template <int kColumns>
inline constexpr int kForwardKeys = kColumns > 128 ? 32 : 64;

// Where the tensors begin, and how their rows lie; the queries of a sequence are p.tokens rows.
template <class V>
struct AttentionTensors {
  const V *q, *k, *v;  // k and v: of key head 0
  V* out;
  float* lse;  // may be null
  int64_t kv_row, kv_tokens;
  const StepState* position;  // of query 0 among the keys; null: 0
};

// The running softmax of the rows g and g + 8, in powers of two. The sum is the lane's own part.
struct Running {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

constexpr int kQuad = 4;  // neighbouring lanes that share rows

// Scores to probabilities relative to the running maximum; shrink is the factor of what was summed
// before. The rows see the keys of the tile from `from` to before `to`; most tiles the whole warp
// sees whole.
template <bool kCapped, int kN>
__device__ inline void softmax_step(Running& rows, float (&s)[kN][4], float (&shrink)[2],
                                    const int (&from)[2], const int (&to)[2],
                                    const AttentionProblem& p) {
  const int t = lane() % 4;
  const float scale2 = p.scale * kLog2E;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if constexpr (kCapped)
        s[n][i] = capped(s[n][i] * p.scale, p.softcap).value * kLog2E;
      else
        s[n][i] *= scale2;
  if (!simt::all(from[0] == 0 && from[1] == 0 && to[0] == 8 * kN && to[1] == 8 * kN)) {
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = n * 8 + 2 * t + i % 2;
        if (key < from[i / 2] || key >= to[i / 2]) s[n][i] = -INFINITY;
      }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float high = -INFINITY;
#pragma unroll
    for (int n = 0; n < kN; ++n) high = max(high, max(s[n][2 * half], s[n][2 * half + 1]));
    const float top = max(rows.top[half], group_max(high, kQuad));
    const float shift = top == -INFINITY ? 0.0f : top;
    shrink[half] = exp2(rows.top[half] - shift);
    float part = 0.0f;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * half + i];
        x = exp2(x - shift);
        part += x;
      }
    rows.sum[half] = rows.sum[half] * shrink[half] + part;
    rows.top[half] = top;
  }
}

// Zero where dropped; what is kept keeps its size, for the factor of the mask comes at the end.
template <int kN>
__device__ inline void drop_keys(float (&s)[kN][4], const MaskKey& key, const TilePlace& at,
                                 int mine, const AttentionProblem& p) {
  const int first = lane() % 4 * 2;
  KeyDraws<kN> draws;
  draws.draw(key, at, mine, p);
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const KeptKeys kept = draws.kept(n);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!(kept.bits[i / 2] >> (first + i % 2) & 1u)) s[n][i] = 0.0f;
  }
}

// A warp for 16 queries over all keys they see.
template <int kColumns, AttentionMode kMode, class V>
__global__ void attention_forward_mma_kernel(AttentionTensors<V> io, AttentionProblem p,
                                             int64_t tiles) {
  know_mode<kMode>(p);
  constexpr int kKeys = kForwardKeys<kColumns>, kN = kKeys / 8;
  const int block_rows = warps() * kWarpRows;
  const auto q = dynamic_smem<V>();
  constexpr int kTile = kKeys * kTileRow<kColumns>;
  const auto tiles_of_keys = q.part(block_rows * kTileRow<kColumns>);
  // The queries that see most come first.
  TilePlace at{};
  at.q0 = (tiles - 1 - block() % tiles) * block_rows;
  at.h = block() / tiles % p.heads;
  at.b = block() / tiles / p.heads;
  at.queries = at_most(p.tokens - at.q0, block_rows);
  at.keys = keys_of(p, at.b);
  const int64_t row = at.b * p.tokens + at.q0;
  const int64_t kv = at.b * io.kv_tokens * io.kv_row + key_head(p, at.h) * p.width;
  float* const lse = io.lse ? io.lse + (at.b * p.heads + at.h) * p.tokens + at.q0 : nullptr;
  if (io.position) {
    at.q0 += io.position->position;
    at.keys = io.position->position + p.tokens;
    if (at.keys > io.kv_tokens && p.ring == 0) at.keys = io.kv_tokens;
  }
  begin_tile<kColumns>(q, io.q + row * p.qkv_row + at.h * p.width, p.qkv_row, at.queries,
                       block_rows, p);
  MaskKey key{};
  if (p.state) key = mask_key(*p.state, p.mask.site);
  const int g = lane() / 4, t = lane() % 4, mine = warp() * kWarpRows + g;
  const KeyRange range[2] = {keys_of_row(at, mine, p), keys_of_row(at, mine + 8, p)};
  WarpRows<kColumns, V> queries(q);
  float sums[kColumns / 8][4];
  clear(sums);
  Running rows;
  const int64_t begin = first_key(p, at.b, at.q0) / kKeys * kKeys, end = end_of_keys(p, at);
  const auto begin_keys = [&](int64_t k0, int stage) {
    const int valid = at_most(end - k0, kKeys);
    const auto to = tiles_of_keys.part(stage * 2 * kTile);
    const int64_t first = kv + row_of_keys(p, k0) * io.kv_row;
    begin_tile<kColumns>(to, io.k + first, io.kv_row, valid, kKeys, p);
    begin_tile<kColumns>(to.part(kTile), io.v + first, io.kv_row, valid, kKeys, p);
  };
  if (begin < end) begin_keys(begin, 0);
  end_copies();
  if (begin >= end) {
    wait_copies<0>();
    sync_threads();
  }
  int stage = 0;
  for (at.k0 = begin; at.k0 < end; at.k0 += kKeys) {
    if (kStages<kColumns> == 1 && at.k0 > begin) {
      sync_threads();
      begin_keys(at.k0, 0);
      end_copies();
    }
    wait_copies<0>();
    sync_threads();  // all have these keys, and are done with those before
    const auto k = tiles_of_keys.part(stage * 2 * kTile), v = k.part(kTile);
    if (kStages<kColumns> == 2 && at.k0 + kKeys < end) {
      stage = 1 - stage;
      begin_keys(at.k0 + kKeys, stage);
      end_copies();
    }
    if (at.k0 == begin) queries.hold();
    int from[2], to[2];
    for (int half = 0; half < 2; ++half) {
      from[half] = clamped(range[half].first - at.k0, kKeys);
      to[half] = clamped(range[half].end - at.k0, kKeys);
    }
    if (!any(from[0] < to[0] || from[1] < to[1])) continue;  // the warp sees none of these keys
    float s[kN][4], shrink[2];
    products<kColumns>(s, queries, k);
    softmax_step<kMode == AttentionMode::capped>(rows, s, shrink, from, to, p);
    if (p.state) drop_keys(s, key, at, mine, p);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= shrink[i / 2];
    add_weighted<kColumns>(sums, s, v);
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = group_sum(rows.sum[half], kQuad);
    const bool blind = sum == 0.0f;  // its window begins behind the last key
    factor[half] = blind ? 0.0f : (p.state ? p.mask.kept : 1.0f) / sum;
    if (lse && t == 0 && mine + 8 * half < at.queries)
      lse[mine + 8 * half] = blind ? 0.0f : rows.top[half] * kLn2 + log(sum);
  }
  const int first_row = warp() * kWarpRows;
  store_sums(io.out + ((row + first_row) * p.heads + at.h) * p.width, p.heads * p.width, queries,
             sums, factor[0], factor[1], 0, at.queries - first_row, p);
}

}  // namespace

template <class V, class Queue>
void attention_forward_mma(Queue& queue, const char* name, const AttentionRows& rows, int64_t B,
                           const AttentionSpec& spec, const AttentionProblem& p, int threads) {
  const int block_rows = threads / kWarp * kWarpRows;
  const int64_t tiles = ceil_div(p.tokens, int64_t{block_rows});
  const AttentionTensors<V> io{rows.qkv.as<const V>(),
                               static_cast<const V*>(rows.k),
                               static_cast<const V*>(rows.v),
                               rows.out.as<V>(),
                               rows.lse.defined() ? rows.lse.as<float>() : nullptr,
                               rows.kv_row,
                               rows.kv_tokens,
                               rows.position};
  with_columns(spec.D, [&](auto columns) {
    constexpr int kColumns = columns();
    const int64_t values =
        (block_rows + kStages<kColumns> * 2 * kForwardKeys<kColumns>)*int64_t{kTileRow<kColumns>};
    with_mode(p, [&](auto mode) {
      launch(queue,
             {.blocks = B * spec.H * tiles,
              .threads = threads,
              .shared_bytes = values * int64_t{sizeof(V)}},
             name, attention_forward_mma_kernel<kColumns, mode(), V>, io, p, tiles);
    });
  });
}

template void attention_forward_mma<bf16>(simt::Queue&, const char*, const AttentionRows&, int64_t,
                                          const AttentionSpec&, const AttentionProblem&, int);
template void attention_forward_mma<f16>(simt::Queue&, const char*, const AttentionRows&, int64_t,
                                         const AttentionSpec&, const AttentionProblem&, int);

}  // namespace snug
