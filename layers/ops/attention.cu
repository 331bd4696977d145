#include "engine/kernels/dispatch.h"
#include "engine/simt/reduce.h"
#include "layers/ops/attention_mma.h"
#include "layers/ops/attention_simt.h"
#include "layers/ops/attention_tiles.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

constexpr float kHidden = -INFINITY;

// Micros of a thread, at most.
template <class Size>
constexpr int kOwn = Size::kMicros < kWarp ? 1 : Size::kMicros / kWarp;
// Lanes that have one: a warp, but where a tile is less.
template <class Size>
constexpr uint32_t kBusy = Size::kMicros < kWarp ? (1u << Size::kMicros) - 1 : kAllLanes;

// Over the neighbouring lanes that share rows.
template <class Size>
__device__ inline float lanes_max(float v, SIMT_WHERE) {
  return group_max(v, Size::kMicroKeys, kBusy<Size>, where);
}
template <class Size>
__device__ inline float lanes_sum(float v, SIMT_WHERE) {
  return group_sum(v, Size::kMicroKeys, kBusy<Size>, where);
}

// The running maximum and sum of a row, alike in the lanes that share it.
struct Running {
  float top = kHidden, sum = 0.0f;
};

// Scores of the tile to probabilities w relative to the running maximum, dropped out; alpha[r] is
// the factor of what was summed before.
template <class Size>
__device__ inline void softmax_tile(Running (&rows)[kOwn<Size>][kMicro], const Shared<float>& w,
                                    const Shared<float>& alpha, const Shared<float>& q,
                                    const Shared<float>& k, const Shared<uint32_t>& keep,
                                    const TilePlace& at, const AttentionProblem& p) {
  constexpr int kMicroKeys = Size::kMicroKeys;
// Unrolled, here and below: the arrays stay in registers.
#pragma unroll
  for (int own = 0; own < kOwn<Size>; ++own) {
    const int m = own * threads() + thread();
    if (m >= Size::kMicros) continue;  // whole warps, or all that are not busy
    const int x = m % kMicroKeys, y = m / kMicroKeys;
    float s[kMicro][kMicro];
    dots<Size>(s, q, k, y, x, p);
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int r = y + Size::kMicroRows * i;
      Running& row = rows[own][i];
      float high = kHidden;
      for (int j = 0; j < kMicro; ++j) {
        float score = s[i][j] * p.scale;
        if (p.softcap > 0.0f) score = capped(score, p.softcap).value;
        s[i][j] = sees(at, r, x + kMicroKeys * j, p) ? score : kHidden;
        high = max(high, s[i][j]);
      }
      const float top = max(row.top, lanes_max<Size>(high));
      const float shift = top == kHidden ? 0.0f : top;
      const float before = exp(row.top - shift);
      float part = 0.0f;
      for (int j = 0; j < kMicro; ++j) {
        const int key = x + kMicroKeys * j;
        float e = exp(s[i][j] - shift);
        part += e;
        if (p.state) e = dropped(e, p.mask.kept, keep[r * kMicroKeys + key / 4], key % 4);
        w[r * Size::kRow + key] = e;
      }
      row.sum = row.sum * before + lanes_sum<Size>(part);
      row.top = top;
      if (x == 0) alpha[r] = before;
    }
  }
}

// alpha[r] = 1 / sum, lse of the rows that exist.
template <class Size>
__device__ inline void finish_rows(const Running (&rows)[kOwn<Size>][kMicro],
                                   const Shared<float>& alpha, float* lse, const TilePlace& at) {
#pragma unroll
  for (int own = 0; own < kOwn<Size>; ++own) {
    const int m = own * threads() + thread();
    if (m >= Size::kMicros || m % Size::kMicroKeys > 0) continue;
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int r = m / Size::kMicroKeys + Size::kMicroRows * i;
      const Running& row = rows[own][i];
      const bool blind = row.sum == 0.0f;  // its window begins behind the last key
      alpha[r] = blind ? 0.0f : 1.0f / row.sum;
      if (lse && r < at.queries) lse[r] = blind ? 0.0f : row.top + log(row.sum);
    }
  }
}

// Floats of shared memory: q, the sums and k, v of a tile, and the probabilities.
template <class Size>
int64_t forward_floats(const AttentionProblem& p) {
  return 2 * (Size::kQueries + Size::kKeys) * int64_t{p.stride} + Size::kQueries * Size::kRow;
}

// Where a tile's rows begin: its first query and output, the sequence's first key and value.
struct TileRows {
  const float *q, *k, *v;
  int64_t q_row, kv_row;  // from one to the next
  float* out;
  float* lse;  // may be null
};

// A tile of queries over all keys they see.
template <class Size>
__device__ inline void forward_tile(const TileRows& rows_at, TilePlace at,
                                    const AttentionProblem& p) {
  constexpr int kQueries = Size::kQueries, kKeys = Size::kKeys;
  const auto q = dynamic_smem<float>();
  const auto sums = q.part(kQueries * p.stride), k = sums.part(kQueries * p.stride);
  const auto v = k.part(kKeys * p.stride), w = v.part(kKeys * p.stride);
  SHARED_ARRAY(float, alpha, kQueries);
  SHARED_ARRAY(uint32_t, keep, kQueries * Size::kMicroKeys);
  MaskKey key{};
  if (p.state) key = mask_key(*p.state, p.mask.site);
  load_rows(q, rows_at.q, rows_at.q_row, at.queries, kQueries, p);
  zero_rows(sums, kQueries, p);
  Running rows[kOwn<Size>][kMicro];
  const int64_t begin = first_key(p, at.b, at.q0) / kKeys * kKeys, end = end_of_keys(p, at);
  for (at.k0 = begin; at.k0 < end; at.k0 += kKeys) {
    if (at.k0 > begin) sync_threads();
    const int valid = static_cast<int>(end - at.k0 < kKeys ? end - at.k0 : kKeys);
    const int64_t first = row_of_keys(p, at.k0) * rows_at.kv_row;
    load_rows(k, rows_at.k + first, rows_at.kv_row, valid, kKeys, p);
    load_rows(v, rows_at.v + first, rows_at.kv_row, valid, kKeys, p);
    if (p.state) load_mask<Size>(keep, key, at, p);
    sync_threads();
    softmax_tile<Size>(rows, w, alpha, q, k, keep, at, p);
    sync_threads();
    add_products<Size>(sums, w, v, p, [&](int r) -> float { return alpha[r]; });
  }
  sync_threads();
  finish_rows<Size>(rows, alpha, rows_at.lse, at);
  sync_threads();
  store_rows(rows_at.out, p.heads * p.width, sums, at.queries, p,
             [&](int r) -> float { return alpha[r]; });
}

// The tile of this block: the queries, their head and sequence. Those that see most come first.
template <class Size>
__device__ inline TilePlace tile_of_block(const AttentionProblem& p, int64_t tiles) {
  TilePlace at{};
  constexpr int kQueries = Size::kQueries;
  at.q0 = (tiles - 1 - block() % tiles) * kQueries;
  at.h = block() / tiles % p.heads;
  at.b = block() / tiles / p.heads;
  at.queries = static_cast<int>(p.tokens - at.q0 < kQueries ? p.tokens - at.q0 : kQueries);
  return at;
}

template <class Size>
__global__ void attention_forward_kernel(float* out, float* lse, const float* qkv,
                                         AttentionProblem p, int64_t tiles) {
  TilePlace at = tile_of_block<Size>(p, tiles);
  at.keys = keys_of(p, at.b);
  const int64_t first_row = at.b * p.tokens, row = first_row + at.q0;
  const float* const k =
      qkv + first_row * p.qkv_row + key_head(p, at.h) * p.width + p.heads * p.width;
  forward_tile<Size>(
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
  if (at < 0 || (p.ring == 0 && at >= positions)) return;
  const V* const from = qkv + row * p.qkv_row + p.heads * p.width + i % cell;
  const int64_t to = (row / p.tokens * positions + row_of_keys(p, at)) * cell + i % cell;
  cache_k[to] = from[0];
  cache_v[to] = from[cell];
}

// Query t stands at state->position + t and sees the cache up to itself.
template <class Size>
__global__ void attention_cached_kernel(float* out, const float* cache_k, const float* cache_v,
                                        const float* qkv, const StepState* state,
                                        AttentionProblem p, int64_t positions, int64_t tiles) {
  know_mode<AttentionMode::capped>(p);
  TilePlace at = tile_of_block<Size>(p, tiles);
  const int64_t row = at.b * p.tokens + at.q0, end = state->position + p.tokens;
  at.q0 += state->position;
  at.keys = end < positions || p.ring > 0 ? end : positions;
  const int64_t kv = (at.b * positions * p.groups + key_head(p, at.h)) * p.width;
  forward_tile<Size>({qkv + row * p.qkv_row + at.h * p.width, cache_k + kv, cache_v + kv, p.qkv_row,
                      p.groups * p.width, out + (row * p.heads + at.h) * p.width, nullptr},
                     at, p);
}

}  // namespace

template <class Queue>
void attention_forward_on(Queue& queue, const View& out, const View& lse, const View& qkv,
                          int64_t B, int64_t T, const AttentionSpec& spec, const View& state,
                          int threads) {
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
      with_tiles(spec.D, [&](auto size, auto) {
        using Size = decltype(size);
        const int64_t tiles = ceil_div(T, int64_t{Size::kQueries});
        launch(queue,
               {.blocks = B * spec.H * tiles,
                .threads = threads_of_block<V>(threads),
                .shared_bytes = forward_floats<Size>(p) * int64_t{sizeof(float)}},
               "attention_forward", attention_forward_kernel<Size>, out.as<float>(),
               lse.as<float>(), qkv.as<const float>(), p, tiles);
      });
    }
  });
}

template <class Queue>
void attention_cached_forward_on(Queue& queue, const View& out, const View& cache_k,
                                 const View& cache_v, const View& qkv, int64_t B, int64_t Tq,
                                 const AttentionSpec& spec, const View& state, int threads) {
  const int64_t positions = cache_k.shape[1];
  const int64_t n = B * Tq * spec.G * spec.D;
  dispatch_float(qkv, "qkv", [&](auto tag) {
    using V = decltype(tag);
    AttentionProblem p(Tq, spec, state);
    p.wide = wide_heads<V>(spec, {&out, &qkv, &cache_k, &cache_v});
    p.ring = cache_ring(spec, positions, Tq);
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
      with_tiles(spec.D, [&](auto size, auto) {
        using Size = decltype(size);
        const int64_t tiles = ceil_div(Tq, int64_t{Size::kQueries});
        launch(queue,
               {.blocks = B * spec.H * tiles,
                .threads = threads,
                .shared_bytes = forward_floats<Size>(p) * int64_t{sizeof(float)}},
               "attention_cached_forward", attention_cached_kernel<Size>, out.as<float>(),
               cache_k.as<const float>(), cache_v.as<const float>(), qkv.as<const float>(), step, p,
               positions, tiles);
      });
    }
  });
}

template void attention_cached_forward_on(simt::Queue&, const View&, const View&, const View&,
                                          const View&, int64_t, int64_t, const AttentionSpec&,
                                          const View&, int);

template void attention_forward_on(simt::Queue&, const View&, const View&, const View&, int64_t,
                                   int64_t, const AttentionSpec&, const View&, int);

}  // namespace snug
