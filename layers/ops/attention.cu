#include "engine/kernels/dispatch.h"
#include "engine/simt/reduce.h"
#include "layers/ops/attention_mma.h"
#include "layers/ops/attention_simt.h"
#include "layers/ops/attention_tiles.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

constexpr int kKeys = 32;                   // of a tile
constexpr int kMicroKeys = kKeys / kMicro;  // threads that share a row of scores: neighbours
constexpr int kMicros = kMicroRows * kMicroKeys;
constexpr int kOwn = kMicros / kWarp;  // of a thread, at most
constexpr float kHidden = -INFINITY;

// Over the eight lanes that share rows.
__device__ inline float lanes_max(float v, SIMT_WHERE) {
  for (int distance = 1; distance < kMicroKeys; distance *= 2)
    v = max(v, shuffle_xor(v, distance, kAllLanes, where.part(distance)));
  return v;
}
__device__ inline float lanes_sum(float v, SIMT_WHERE) {
  for (int distance = 1; distance < kMicroKeys; distance *= 2)
    v += shuffle_xor(v, distance, kAllLanes, where.part(distance));
  return v;
}

// The running maximum and sum of a row, in the eight lanes alike.
struct Running {
  float top = kHidden, sum = 0.0f;
};

// Scores of the tile to probabilities w relative to the running maximum, dropped out; alpha[r] is
// the factor of what was summed before.
__device__ inline void softmax_tile(Running (&rows)[kOwn][kMicro], const Shared<float>& w,
                                    const Shared<float>& alpha, const Shared<float>& q,
                                    const Shared<float>& k, const Shared<uint32_t>& keep,
                                    const TilePlace& at, const AttentionProblem& p) {
  constexpr int kRow = kKeys + kMicro;
// Unrolled, here and below: the arrays stay in registers.
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int m = own * threads() + thread();
    if (m >= kMicros) continue;  // whole warps
    const int x = m % kMicroKeys, y = m / kMicroKeys;
    float s[kMicro][kMicro];
    dots<kMicroKeys>(s, q, k, y, x, p);
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int r = y + kMicroRows * i;
      Running& row = rows[own][i];
      float high = kHidden;
      for (int j = 0; j < kMicro; ++j) {
        s[i][j] = sees(at, r, x + kMicroKeys * j, p) ? s[i][j] * p.scale : kHidden;
        high = max(high, s[i][j]);
      }
      const float top = max(row.top, lanes_max(high));
      const float shift = top == kHidden ? 0.0f : top;
      const float before = exp(row.top - shift);
      float part = 0.0f;
      for (int j = 0; j < kMicro; ++j) {
        const int key = x + kMicroKeys * j;
        float e = exp(s[i][j] - shift);
        part += e;
        if (p.state) e = dropped(e, p.mask.kept, keep[r * kMicroKeys + key / 4], key % 4);
        w[r * kRow + key] = e;
      }
      row.sum = row.sum * before + lanes_sum(part);
      row.top = top;
      if (x == 0) alpha[r] = before;
    }
  }
}

// alpha[r] = 1 / sum, lse of the rows that exist.
__device__ inline void finish_rows(const Running (&rows)[kOwn][kMicro], const Shared<float>& alpha,
                                   float* lse, const TilePlace& at) {
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int m = own * threads() + thread();
    if (m >= kMicros || m % kMicroKeys > 0) continue;
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int r = m / kMicroKeys + kMicroRows * i;
      const Running& row = rows[own][i];
      const bool blind = row.sum == 0.0f;  // its window begins behind the last key
      alpha[r] = blind ? 0.0f : 1.0f / row.sum;
      if (lse && r < at.queries) lse[r] = blind ? 0.0f : row.top + log(row.sum);
    }
  }
}

// Floats of shared memory: q, the sums and k, v of a tile, and the probabilities.
int64_t forward_floats(const AttentionProblem& p) {
  return 2 * (kTileQueries + kKeys) * int64_t{p.stride} + kTileQueries * (kKeys + kMicro);
}

// Where a tile's rows begin: its first query and output, the sequence's first key and value.
template <class V>
struct TileRows {
  const V *q, *k, *v;
  int64_t q_row, kv_row;  // from one to the next
  V* out;
  float* lse;  // may be null
};

// A tile of queries over all keys they see.
template <class V>
__device__ inline void forward_tile(const TileRows<V>& rows_at, TilePlace at,
                                    const AttentionProblem& p) {
  const auto q = dynamic_smem<float>();
  const auto sums = q.part(kTileQueries * p.stride), k = sums.part(kTileQueries * p.stride);
  const auto v = k.part(kKeys * p.stride), w = v.part(kKeys * p.stride);
  SHARED_ARRAY(float, alpha, kTileQueries);
  SHARED_ARRAY(uint32_t, keep, kTileQueries * kMicroKeys);
  MaskKey key{};
  if (p.state) key = mask_key(*p.state, p.mask.site);
  load_rows(q, rows_at.q, rows_at.q_row, at.queries, kTileQueries, p);
  zero_rows(sums, kTileQueries, p);
  Running rows[kOwn][kMicro];
  const int64_t begin = first_key(p, at.b, at.q0) / kKeys * kKeys, end = end_of_keys(p, at);
  for (at.k0 = begin; at.k0 < end; at.k0 += kKeys) {
    if (at.k0 > begin) sync_threads();
    const int valid = static_cast<int>(end - at.k0 < kKeys ? end - at.k0 : kKeys);
    load_rows(k, rows_at.k + at.k0 * rows_at.kv_row, rows_at.kv_row, valid, kKeys, p);
    load_rows(v, rows_at.v + at.k0 * rows_at.kv_row, rows_at.kv_row, valid, kKeys, p);
    if (p.state) load_mask(keep, key, kKeys, at, p);
    sync_threads();
    softmax_tile(rows, w, alpha, q, k, keep, at, p);
    sync_threads();
    add_products<kKeys>(sums, w, v, p, [&](int r) -> float { return alpha[r]; });
  }
  sync_threads();
  finish_rows(rows, alpha, rows_at.lse, at);
  sync_threads();
  store_rows(rows_at.out, p.heads * p.width, sums, at.queries, p,
             [&](int r) -> float { return alpha[r]; });
}

// The tile of this block: the queries, their head and sequence. Those that see most come first.
__device__ inline TilePlace tile_of_block(const AttentionProblem& p, int64_t tiles) {
  TilePlace at{};
  at.q0 = (tiles - 1 - block() % tiles) * kTileQueries;
  at.h = block() / tiles % p.heads;
  at.b = block() / tiles / p.heads;
  at.queries = static_cast<int>(p.tokens - at.q0 < kTileQueries ? p.tokens - at.q0 : kTileQueries);
  return at;
}

template <class V>
__global__ void attention_forward_kernel(V* out, float* lse, const V* qkv, AttentionProblem p,
                                         int64_t tiles) {
  TilePlace at = tile_of_block(p, tiles);
  at.keys = keys_of(p, at.b);
  const int64_t first_row = at.b * p.tokens, row = first_row + at.q0;
  const V* const k = qkv + first_row * p.qkv_row + key_head(p, at.h) * p.width + p.heads * p.width;
  forward_tile<V>(
      {qkv + row * p.qkv_row + at.h * p.width, k, k + p.groups * p.width, p.qkv_row, p.qkv_row,
       out + (row * p.heads + at.h) * p.width, lse + (at.b * p.heads + at.h) * p.tokens + at.q0},
      at, p);
}

// The new keys and values behind those of the cache (B,P,G,D): a thread for every value.
template <class V>
__global__ void cache_append_kernel(V* cache_k, V* cache_v, const V* qkv, const StepState* state,
                                    AttentionProblem p, int64_t positions, int64_t n) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const int64_t cell = p.groups * p.width, row = i / cell;
  const int64_t at = state->position + row % p.tokens;
  if (at < 0 || at >= positions) return;
  const V* const from = qkv + row * p.qkv_row + p.heads * p.width + i % cell;
  const int64_t to = (row / p.tokens * positions + at) * cell + i % cell;
  cache_k[to] = from[0];
  cache_v[to] = from[cell];
}

// Query t stands at state->position + t and sees the cache up to itself.
template <class V>
__global__ void attention_cached_kernel(V* out, const V* cache_k, const V* cache_v, const V* qkv,
                                        const StepState* state, AttentionProblem p,
                                        int64_t positions, int64_t tiles) {
  TilePlace at = tile_of_block(p, tiles);
  const int64_t row = at.b * p.tokens + at.q0, end = state->position + p.tokens;
  at.q0 += state->position;
  at.keys = end < positions ? end : positions;
  const int64_t kv = (at.b * positions * p.groups + key_head(p, at.h)) * p.width;
  forward_tile<V>({qkv + row * p.qkv_row + at.h * p.width, cache_k + kv, cache_v + kv, p.qkv_row,
                   p.groups * p.width, out + (row * p.heads + at.h) * p.width, nullptr},
                  at, p);
}

}  // namespace

template <class Queue>
void attention_forward_on(Queue& queue, const View& out, const View& lse, const View& qkv,
                          int64_t B, int64_t T, const AttentionSpec& spec, const View& state,
                          int threads) {
  const int64_t tiles = ceil_div(T, int64_t{kTileQueries});
  dispatch_float(qkv, "qkv", [&](auto tag) {
    using V = decltype(tag);
    AttentionProblem p(T, spec, state);
    p.wide = wide_heads<V>(spec, {&out, &qkv});
    if constexpr (!std::is_same_v<V, float>) {
      const V* const k = qkv.as<const V>() + spec.H * spec.D;
      attention_forward_mma<V>(queue, "attention_forward_mma",
                               {qkv, out, lse, k, k + spec.G * spec.D, p.qkv_row, T, nullptr}, B,
                               spec, p, threads_of_block<V>(threads));
    } else {
      launch(queue,
             {.blocks = B * spec.H * tiles,
              .threads = threads_of_block<V>(threads),
              .shared_bytes = forward_floats(p) * int64_t{sizeof(float)}},
             "attention_forward", attention_forward_kernel<V>, out.as<V>(), lse.as<float>(),
             qkv.as<const V>(), p, tiles);
    }
  });
}

template <class Queue>
void attention_cached_forward_on(Queue& queue, const View& out, const View& cache_k,
                                 const View& cache_v, const View& qkv, int64_t B, int64_t Tq,
                                 const AttentionSpec& spec, const View& state, int threads) {
  const int64_t tiles = ceil_div(Tq, int64_t{kTileQueries}), positions = cache_k.shape[1];
  const int64_t n = B * Tq * spec.G * spec.D;
  dispatch_float(qkv, "qkv", [&](auto tag) {
    using V = decltype(tag);
    AttentionProblem p(Tq, spec, state);
    p.wide = wide_heads<V>(spec, {&out, &qkv, &cache_k, &cache_v});
    const StepState* const step = step_state(state);
    threads = threads_of_block<V>(threads);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "cache_append",
           cache_append_kernel<V>, cache_k.as<V>(), cache_v.as<V>(), qkv.as<const V>(), step, p,
           positions, n);
    if constexpr (!std::is_same_v<V, float>) {
      attention_forward_mma<V>(
          queue, "attention_cached_forward_mma",
          {qkv, out, {}, cache_k.data, cache_v.data, spec.G * spec.D, positions, step}, B, spec, p,
          threads);
    } else {
      launch(queue,
             {.blocks = B * spec.H * tiles,
              .threads = threads,
              .shared_bytes = forward_floats(p) * int64_t{sizeof(float)}},
             "attention_cached_forward", attention_cached_kernel<V>, out.as<V>(),
             cache_k.as<const V>(), cache_v.as<const V>(), qkv.as<const V>(), step, p, positions,
             tiles);
    }
  });
}

template void attention_cached_forward_on(simt::Queue&, const View&, const View&, const View&,
                                          const View&, int64_t, int64_t, const AttentionSpec&,
                                          const View&, int);

template void attention_forward_on(simt::Queue&, const View&, const View&, const View&, int64_t,
                                   int64_t, const AttentionSpec&, const View&, int);

}  // namespace snug
