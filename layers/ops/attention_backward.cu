#include "engine/kernels/dispatch.h"
#include "engine/simt/reduce.h"
#include "layers/ops/attention_mma.h"
#include "layers/ops/attention_simt.h"
#include "layers/ops/attention_tiles.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// delta of every query and head: dout . out. `group` lanes each, a power of two, in vectors of N.
template <class V, int N>
__global__ void attention_delta_kernel(float* delta, const V* dout, const V* out, int64_t n,
                                       int group, AttentionProblem p) {
  const int64_t i = (block() * warps() + warp()) * (kWarp / group) + lane() / group;
  float sum = 0.0f;
  if (i < n) {
    for (int d = lane() % group * N; d < p.width; d += group * N) {
      const auto a = Pack<V, N>::load(dout + i * p.width + d);
      const auto b = Pack<V, N>::load(out + i * p.width + d);
      for (int k = 0; k < N; ++k) sum = fma(to_f32(a[k]), to_f32(b[k]), sum);
    }
  }
  sum = group_sum(sum, group);
  if (i >= n || lane() % group > 0) return;
  const int64_t row = i / p.heads, h = i % p.heads;
  delta[(row / p.tokens * p.heads + h) * p.tokens + row % p.tokens] = sum;
}

// Lanes that share a dot product: as many as it has vectors, up to a warp.
int lanes_of_delta(int64_t vectors) {
  int lanes = 1;
  while (lanes < kWarp && lanes < vectors) lanes *= 2;
  return lanes;
}

// The tiles of one tile of queries in shared memory.
struct QueryTile {
  Shared<float> q, dout;
  Shared<float> lse, delta;  // a value a row
  Shared<uint32_t> keep;
};

template <class Size>
__device__ inline void load_queries(const QueryTile& tile, const float* qkv, const float* dout,
                                    const float* lse, const float* delta, const TilePlace& at,
                                    const AttentionProblem& p) {
  constexpr int kQueries = Size::kQueries;
  const int64_t row = at.b * p.tokens + at.q0;
  load_rows(tile.q, qkv + row * p.qkv_row + at.h * p.width, p.qkv_row, at.queries, kQueries, p);
  load_rows(tile.dout, dout + (row * p.heads + at.h) * p.width, p.heads * p.width, at.queries,
            kQueries, p);
  const int64_t first = (at.b * p.heads + at.h) * p.tokens + at.q0;
  for (int r = thread(); r < kQueries; r += threads()) {
    tile.lse[r] = r < at.queries ? lse[first + r] : 0.0f;
    tile.delta[r] = r < at.queries ? delta[first + r] : 0.0f;
  }
}

// f(r, key, m p, ds) for every pair of the tile; both are 0 where the query does not see the key.
template <class Size, class F>
__device__ inline void each_pair(const QueryTile& tile, const Shared<float>& k,
                                 const Shared<float>& v, const TilePlace& at,
                                 const AttentionProblem& p, F&& f) {
  constexpr int kColumns = Size::kMicroKeys, kMicroRows = Size::kMicroRows;
  for (int m = thread(); m < Size::kMicros; m += threads()) {
    const int x = m % kColumns, y = m / kColumns;
    float s[kMicro][kMicro], dp[kMicro][kMicro];
    dots<Size>(s, tile.q, k, y, x, p);
    dots<Size>(dp, tile.dout, v, y, x, p);
// Unrolled, here and below: the arrays stay in registers.
#pragma unroll
    for (int i = 0; i < kMicro; ++i) {
      const int r = y + kMicroRows * i;
      const float lse = tile.lse[r], delta = tile.delta[r];
#pragma unroll
      for (int j = 0; j < kMicro; ++j) {
        const int key = x + kColumns * j;
        if (!sees(at, r, key, p)) {
          f(r, key, 0.0f, 0.0f);
          continue;
        }
        Capped score{s[i][j] * p.scale, 1.0f};
        if (p.softcap > 0.0f) score = capped(score.value, p.softcap);
        const float e = exp(score.value - lse);
        float kept = e, slope = dp[i][j];
        if (p.state) {
          const uint32_t bits = tile.keep[r * kColumns + key / 4];
          kept = dropped(kept, p.mask.kept, bits, key % 4);
          slope = dropped(slope, p.mask.kept, bits, key % 4);
        }
        f(r, key, kept, e * (slope - delta) * score.slope);
      }
    }
  }
}

template <class Size>
int64_t floats_of_dq(const AttentionProblem& p) {
  return (3 * Size::kQueries + 2 * Size::kKeys) * int64_t{p.stride} + Size::kQueries * Size::kRow;
}

// A block for every tile of queries of every head.
template <class Size>
__global__ void attention_dq_kernel(float* dqkv, const float* dout, const float* qkv,
                                    const float* lse, const float* delta, AttentionProblem p,
                                    int64_t tiles) {
  constexpr int kQueries = Size::kQueries, kKeys = Size::kKeys, kRow = Size::kRow;
  const auto q = dynamic_smem<float>();
  const auto d = q.part(kQueries * p.stride), dq = d.part(kQueries * p.stride);
  const auto k = dq.part(kQueries * p.stride), v = k.part(kKeys * p.stride);
  const auto ds = v.part(kKeys * p.stride);
  SHARED_ARRAY(float, row_lse, kQueries);
  SHARED_ARRAY(float, row_delta, kQueries);
  SHARED_ARRAY(uint32_t, keep, kQueries * kKeys / 4);
  const QueryTile tile{q, d, row_lse, row_delta, keep};
  TilePlace at{};
  at.q0 = (tiles - 1 - block() % tiles) * kQueries;
  at.h = block() / tiles % p.heads;
  at.b = block() / tiles / p.heads;
  at.queries = at_most(p.tokens - at.q0, kQueries);
  at.keys = keys_of(p, at.b);
  MaskKey key{};
  if (p.state) key = mask_key(*p.state, p.mask.site);
  load_queries<Size>(tile, qkv, dout, lse, delta, at, p);
  zero_rows(dq, kQueries, p);
  const int64_t first_row = at.b * p.tokens, group = p.heads + at.h / (p.heads / p.groups);
  const int64_t begin = first_key(p, at.b, at.q0) / kKeys * kKeys, end = end_of_keys(p, at);
  for (at.k0 = begin; at.k0 < end; at.k0 += kKeys) {
    if (at.k0 > begin) sync_threads();
    const float* keys = qkv + (first_row + at.k0) * p.qkv_row + group * p.width;
    const int valid = at_most(end - at.k0, kKeys);
    load_rows(k, keys, p.qkv_row, valid, kKeys, p);
    load_rows(v, keys + p.groups * p.width, p.qkv_row, valid, kKeys, p);
    if (p.state) load_mask<Size>(keep, key, at, p);
    sync_threads();
    each_pair<Size>(tile, k, v, at, p,
                    [&](int r, int j, float, float slope) { ds[r * kRow + j] = slope; });
    sync_threads();
    add_products<Size>(dq, ds, k, p, [](int) { return 1.0f; });
  }
  sync_threads();
  store_rows(dqkv + (first_row + at.q0) * p.qkv_row + at.h * p.width, p.qkv_row, dq, at.queries, p,
             [&](int) { return p.scale; });
}

template <class Size>
int64_t floats_of_dkv(const AttentionProblem& p) {
  return (2 * Size::kQueries + 4 * Size::kKeys) * int64_t{p.stride} +
         2 * Size::kQueries * Size::kRow;
}

// A block for every tile of keys of every key/value head; it goes over the queries of the heads
// that read them, in order.
template <class Size>
__global__ void attention_dkv_kernel(float* dqkv, const float* dout, const float* qkv,
                                     const float* lse, const float* delta, AttentionProblem p,
                                     int64_t tiles) {
  constexpr int kQueries = Size::kQueries, kKeys = Size::kKeys, kRow = Size::kRow;
  const auto q = dynamic_smem<float>();
  const auto d = q.part(kQueries * p.stride), k = d.part(kQueries * p.stride);
  const auto v = k.part(kKeys * p.stride), dk = v.part(kKeys * p.stride);
  const auto dv = dk.part(kKeys * p.stride), weight = dv.part(kKeys * p.stride);
  const auto ds = weight.part(kQueries * kRow);
  SHARED_ARRAY(float, row_lse, kQueries);
  SHARED_ARRAY(float, row_delta, kQueries);
  SHARED_ARRAY(uint32_t, keep, kQueries * kKeys / 4);
  const QueryTile tile{q, d, row_lse, row_delta, keep};
  const int64_t g = block() / tiles % p.groups, shared = p.heads / p.groups;
  TilePlace at{};
  at.k0 = block() % tiles * kKeys;
  at.b = block() / tiles / p.groups;
  at.keys = keys_of(p, at.b);
  MaskKey key{};
  if (p.state) key = mask_key(*p.state, p.mask.site);
  const int64_t first_row = at.b * p.tokens;
  const int valid = at_most(p.tokens - at.k0, kKeys);
  const int64_t place = (first_row + at.k0) * p.qkv_row + (p.heads + g) * p.width;
  load_rows(k, qkv + place, p.qkv_row, valid, kKeys, p);
  load_rows(v, qkv + place + p.groups * p.width, p.qkv_row, valid, kKeys, p);
  zero_rows(dk, kKeys, p);
  zero_rows(dv, kKeys, p);
  const int64_t first_query = first_query_of(p, at) / kQueries * kQueries;
  const int64_t end = at.k0 < at.keys ? p.tokens : 0;
  for (at.h = g * shared; at.h < (g + 1) * shared; ++at.h)
    for (at.q0 = first_query; at.q0 < end; at.q0 += kQueries) {
      // The first key a query sees never descends: no later one sees these.
      if (first_key(p, at.b, at.q0) >= at.k0 + valid) break;
      at.queries = at_most(p.tokens - at.q0, kQueries);
      sync_threads();
      load_queries<Size>(tile, qkv, dout, lse, delta, at, p);
      if (p.state) load_mask<Size>(keep, key, at, p);
      sync_threads();
      each_pair<Size>(tile, k, v, at, p, [&](int r, int j, float kept, float slope) {
        weight[r * kRow + j] = kept;
        ds[r * kRow + j] = slope;
      });
      sync_threads();
      add_transposed_products<Size>(dv, weight, d, p);
      add_transposed_products<Size>(dk, ds, q, p);
    }
  sync_threads();
  store_rows(dqkv + place, p.qkv_row, dk, valid, p, [&](int) { return p.scale; });
  store_rows(dqkv + place + p.groups * p.width, p.qkv_row, dv, valid, p, [](int) { return 1.0f; });
}

}  // namespace

template <class Queue>
void attention_backward_on(Queue& queue, const View& dqkv, const View& delta, const View& dout,
                           const View& qkv, const View& out, const View& lse, int64_t B, int64_t T,
                           const AttentionSpec& spec, const View& state, int threads) {
  dispatch_float(qkv, "qkv", [&](auto tag) {
    using V = decltype(tag);
    AttentionProblem p(T, spec, state);
    p.wide = wide_heads<V>(spec, {&dqkv, &dout, &qkv});
    threads = threads_of_block<V>(threads);
    const int64_t n = B * T * spec.H;
    const bool vectors = wide_heads<V>(spec, {&dout, &out});
    const int group = lanes_of_delta(vectors ? spec.D / kVector<V> : spec.D);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads / group}), .threads = threads},
           "attention_delta",
           vectors ? attention_delta_kernel<V, kVector<V>> : attention_delta_kernel<V, 1>,
           delta.as<float>(), dout.as<const V>(), out.as<const V>(), n, group, p);
    if constexpr (!std::is_same_v<V, float>) {
      attention_backward_mma<V>(queue, dqkv, delta, dout, qkv, lse, B, spec, p, threads);
    } else {
      const auto run = [&](const char* name, auto kernel, int64_t heads, int64_t tile,
                           int64_t floats) {
        const int64_t tiles = ceil_div(T, tile);
        launch(queue,
               {.blocks = B * heads * tiles,
                .threads = threads,
                .shared_bytes = floats * int64_t{sizeof(float)}},
               name, kernel, dqkv.as<float>(), dout.as<const float>(), qkv.as<const float>(),
               lse.as<const float>(), delta.as<const float>(), p, tiles);
      };
      with_tiles(spec.D, [&](auto size, auto size_of_dkv) {
        using Dq = decltype(size);
        using Dkv = decltype(size_of_dkv);
        run("attention_dq", attention_dq_kernel<Dq>, spec.H, Dq::kQueries, floats_of_dq<Dq>(p));
        run("attention_dkv", attention_dkv_kernel<Dkv>, spec.G, Dkv::kKeys, floats_of_dkv<Dkv>(p));
      });
    }
  });
}

template void attention_backward_on(simt::Queue&, const View&, const View&, const View&,
                                    const View&, const View&, const View&, int64_t, int64_t,
                                    const AttentionSpec&, const View&, int);

}  // namespace snug
