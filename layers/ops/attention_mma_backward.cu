#include "layers/ops/attention_mma.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// Of a tile that blocks go over: few, for both kinds of scores and the sums share the registers;
// fewer queries of wide heads, for beside the tiles there are rows of statistics in shared memory.
constexpr int kBackwardKeys = 32;
template <int kColumns>
inline constexpr int kBackwardQueries = kColumns > 128 ? 16 : 32;
// Columns of dk and dv that a block has sums for: both fill half of the registers then.
template <int kColumns>
inline constexpr int kOutColumns = kColumns > 128 ? 128 : kColumns;

template <class V>
struct BackwardTensors {
  V* dqkv;
  const V *dout, *qkv;
  const float *lse, *delta;
};

// A warp for dq of 16 queries, over all keys they see.
template <int kColumns, AttentionMode kMode, class V>
__global__ void attention_dq_mma_kernel(BackwardTensors<V> io, AttentionProblem p, int64_t tiles) {
  know_mode<kMode>(p);
  constexpr int kKeys = kBackwardKeys, kN = kKeys / 8, kRow = kTileRow<kColumns>;
  const int block_rows = warps() * kWarpRows;
  constexpr int kTile = kKeys * kRow;
  const auto q = dynamic_smem<V>();
  const auto d = q.part(block_rows * kRow), tiles_of_keys = d.part(block_rows * kRow);
  TilePlace at{};
  at.q0 = (tiles - 1 - block() % tiles) * block_rows;
  at.h = block() / tiles % p.heads;
  at.b = block() / tiles / p.heads;
  at.queries = at_most(p.tokens - at.q0, block_rows);
  at.keys = keys_of(p, at.b);
  const int64_t first_row = at.b * p.tokens, row = first_row + at.q0;
  begin_tile<kColumns>(q, io.qkv + row * p.qkv_row + at.h * p.width, p.qkv_row, at.queries,
                       block_rows, p);
  begin_tile<kColumns>(d, io.dout + (row * p.heads + at.h) * p.width, p.heads * p.width, at.queries,
                       block_rows, p);
  MaskKey key{};
  if (p.state) key = mask_key(*p.state, p.mask.site);
  const int g = lane() / 4, t = lane() % 4, mine = warp() * kWarpRows + g;
  const int64_t statistics = (at.b * p.heads + at.h) * p.tokens + at.q0;
  KeyRange range[2];
  float lse2[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = mine + 8 * half;
    range[half] = keys_of_row(at, r, p);
    lse2[half] = r < at.queries ? io.lse[statistics + r] * kLog2E : 0.0f;
    delta[half] = r < at.queries ? io.delta[statistics + r] : 0.0f;
  }
  WarpRows<kColumns, V> queries(q), douts(d);
  float dq[kColumns / 8][4];
  clear(dq);
  const V* const keys_of_head =
      io.qkv + first_row * p.qkv_row + p.heads * p.width + key_head(p, at.h) * p.width;
  const int64_t begin = first_key(p, at.b, at.q0) / kKeys * kKeys, end = end_of_keys(p, at);
  const float scale2 = p.scale * kLog2E;
  const auto begin_keys = [&](int64_t k0, int stage) {
    const V* const keys = keys_of_head + k0 * p.qkv_row;
    const int valid = at_most(end - k0, kKeys);
    const auto to = tiles_of_keys.part(stage * 2 * kTile);
    begin_tile<kColumns>(to, keys, p.qkv_row, valid, kKeys, p);
    begin_tile<kColumns>(to.part(kTile), keys + p.groups * p.width, p.qkv_row, valid, kKeys, p);
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
    if (at.k0 == begin) {
      queries.hold();
      douts.hold();
    }
    int from[2], to[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      from[half] = clamped(range[half].first - at.k0, kKeys);
      to[half] = clamped(range[half].end - at.k0, kKeys);
    }
    if (!any(from[0] < to[0] || from[1] < to[1])) continue;  // the warp sees none of these keys
    float s[kN][4], dp[kN][4];
    products<kColumns>(s, queries, k);
    products<kColumns>(dp, douts, v);
    KeyDraws<kN> draws;
    if (p.state) draws.draw(key, at, mine, p);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      KeptKeys kept{};
      if (p.state) kept = draws.kept(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int half = i / 2, column = n * 8 + 2 * t + i % 2;
        float score2 = s[n][i] * scale2, through = 1.0f;
        if constexpr (kMode == AttentionMode::capped) {
          const Capped score = capped(s[n][i] * p.scale, p.softcap);
          score2 = score.value * kLog2E;
          through = score.slope;
        }
        const float e = exp2(score2 - lse2[half]);
        float slope = dp[n][i];
        if (p.state) slope = dropped(slope, p.mask.kept, kept.bits[half], 2 * t + i % 2);
        const bool seen = column >= from[half] && column < to[half];
        float ds = e * (slope - delta[half]);
        if constexpr (kMode == AttentionMode::capped) ds *= through;
        s[n][i] = seen ? ds : 0.0f;
      }
    }
    add_weighted<kColumns>(dq, s, k);
  }
  const int first = warp() * kWarpRows;
  store_sums(io.dqkv + (row + first) * p.qkv_row + at.h * p.width, p.qkv_row, queries, dq, p.scale,
             p.scale, 0, at.queries - first, p);
}

// Tiles of queries in shared memory: with the sums of 128 columns a second one would spill registers.
template <int kColumns>
inline constexpr int kQueryStages = kColumns > 64 ? 1 : 2;

// What a block knows of the queries of a tile: of its own keys a query sees those from first to
// before end.
struct QueryRows {
  Shared<float> lse, delta;
  Shared<int> first, end;
  __device__ QueryRows part(int i) const {
    return {lse.part(i), delta.part(i), first.part(i), end.part(i)};
  }
};

template <int kQueries, class V>
__device__ inline void begin_query_rows(const QueryRows& rows, const BackwardTensors<V>& io,
                                        const TilePlace& at, int block_keys,
                                        const AttentionProblem& p) {
  const int64_t statistics = (at.b * p.heads + at.h) * p.tokens + at.q0;
  for (int r = thread(); r < kQueries; r += threads()) {
    const bool exists = r < at.queries;
    const KeyRange range = keys_of_row(at, r, p);
    copy_number(rows.lse, r, io.lse + statistics + r, exists);
    copy_number(rows.delta, r, io.delta + statistics + r, exists);
    rows.first[r] = clamped(range.first - at.k0, block_keys);
    rows.end[r] = clamped(range.end - at.k0, block_keys);
  }
}

// Bit 4 n + i: the query of the lane's sum i in the eight columns n sees its key. First keys and
// ends never descend from a query to the next, so mostly two of them say that all do.
template <int kN>
__device__ inline uint32_t seen_pairs(const QueryRows& rows, int mine) {
  static_assert(4 * kN <= 32);
  const int own = warp() * kWarpRows;
  if (rows.first[8 * kN - 1] <= own && rows.end[0] >= own + kWarpRows &&
      rows.end[8 * kN - 1] >= own + kWarpRows)
    return 0xffffffffu >> (32 - 4 * kN);
  uint32_t bits = 0;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = n * 8 + lane() % 4 * 2 + i % 2, key = mine + i / 2 * 8;
      if (key >= rows.first[query] && key < rows.end[query]) bits |= 1u << (4 * n + i);
    }
  return bits;
}

// Dropout where keys are rows: bit i of kept(n) says whether the lane's sum i in the eight columns
// n is kept. Eight lanes have the same two queries and sixteen keys, four draws: with every even n
// each draws one of n or n + 1, and they trade. All lanes of the warp, n = 0, 1, ... in turn.
template <int kN>
class PairDraws {
 public:
  static_assert(kN % 2 == 0);

  __device__ PairDraws(const MaskKey& key, const TilePlace& at, const AttentionProblem& p)
      : key_(key), at_(at), p_(p) {}
  __device__ uint32_t kept(int n) {
    const int g = lane() / 4, t = lane() % 4;
    if (n % 2 == 0) {
      const int64_t query = at_.q0 + (n + g / 4) * 8 + 2 * t + g % 2;
      const int64_t keys = at_.k0 + warp() * kWarpRows + g % 4 / 2 * 8;
      drawn_ =
          keep_eight(key_, at_.b, query, at_.h * (int64_t{1} << 17) + keys / 8, p_.mask.threshold);
    }
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= (shuffle(drawn_, (n % 2 * 4 + i) * 4 + t) >> g & 1u) << i;
    return bits;
  }

 private:
  const MaskKey& key_;
  const TilePlace& at_;
  const AttentionProblem& p_;
  uint32_t drawn_ = 0;
};

// A warp for dk and dv of 16 keys and kOut of their columns, over the queries of the heads that
// read them, in order.
template <int kColumns, AttentionMode kMode, class V>
__global__ void attention_dkv_mma_kernel(BackwardTensors<V> io, AttentionProblem p, int64_t tiles) {
  know_mode<kMode>(p);
  constexpr int kQueries = kBackwardQueries<kColumns>, kN = kQueries / 8, kRow = kTileRow<kColumns>;
  constexpr int kOut = kOutColumns<kColumns>;
  const int block_rows = warps() * kWarpRows, first_column = static_cast<int>(block_y()) * kOut;
  constexpr int kTile = kQueries * kRow, kRowsHeld = kQueryStages<kColumns> * kQueries;
  const auto k = dynamic_smem<V>();
  const auto v = k.part(block_rows * kRow), tiles_of_queries = v.part(block_rows * kRow);
  SHARED_ARRAY(float, row_lse, kRowsHeld);
  SHARED_ARRAY(float, row_delta, kRowsHeld);
  SHARED_ARRAY(int, row_first, kRowsHeld);
  SHARED_ARRAY(int, row_end, kRowsHeld);
  const QueryRows all_rows{row_lse, row_delta, row_first, row_end};
  const int64_t group = block() / tiles % p.groups, shared = p.heads / p.groups;
  TilePlace at{};
  at.k0 = block() % tiles * block_rows;
  at.b = block() / tiles / p.groups;
  at.keys = keys_of(p, at.b);
  MaskKey key{};
  if (p.state) key = mask_key(*p.state, p.mask.site);
  const int64_t first_row = at.b * p.tokens;
  const int valid = at_most(p.tokens - at.k0, block_rows);
  const int64_t place = (first_row + at.k0) * p.qkv_row + (p.heads + group) * p.width;
  begin_tile<kColumns>(k, io.qkv + place, p.qkv_row, valid, block_rows, p);
  begin_tile<kColumns>(v, io.qkv + place + p.groups * p.width, p.qkv_row, valid, block_rows, p);
  const int64_t first_query = first_query_of(p, at) / kQueries * kQueries;
  const int64_t end = at.k0 < at.keys ? p.tokens : 0;
  // The first key a query sees never descends: behind a tile that sees none of these, none does.
  const auto sees_some = [&](int64_t q0) {
    return q0 < end && first_key(p, at.b, q0) < at.k0 + at_most(p.tokens - at.k0, block_rows);
  };
  const auto begin_queries = [&](TilePlace of, int stage) {
    of.queries = at_most(p.tokens - of.q0, kQueries);
    const int64_t row = first_row + of.q0;
    const auto to = tiles_of_queries.part(stage * 2 * kTile);
    begin_tile<kColumns>(to, io.qkv + row * p.qkv_row + of.h * p.width, p.qkv_row, of.queries,
                         kQueries, p);
    begin_tile<kColumns>(to.part(kTile), io.dout + (row * p.heads + of.h) * p.width,
                         p.heads * p.width, of.queries, kQueries, p);
    begin_query_rows<kQueries>(all_rows.part(stage * kQueries), io, of, block_rows, p);
  };
  at.h = group * shared;
  at.q0 = first_query;
  bool more = sees_some(first_query);
  if (more) begin_queries(at, 0);
  end_copies();
  wait_copies<0>();
  sync_threads();
  WarpRows<kColumns, V> keys(k), values(v);
  keys.hold();
  values.hold();
  float dk[kOut / 8][4], dv[kOut / 8][4];
  clear(dk);
  clear(dv);
  const int mine = warp() * kWarpRows + lane() / 4, t = lane() % 4;
  const float scale2 = p.scale * kLog2E;
  TilePlace next = at;
  int stage = 0;
  for (bool first = true; more; first = false, at = next) {
    if (!first) {
      if (kQueryStages<kColumns> == 1) {
        sync_threads();
        begin_queries(at, 0);
        end_copies();
      }
      wait_copies<0>();
      sync_threads();  // all have these queries, and are done with those before
    }
    const auto q = tiles_of_queries.part(stage * 2 * kTile), d = q.part(kTile);
    const QueryRows rows = all_rows.part(stage * kQueries);
    next.q0 += kQueries;
    if (!sees_some(next.q0)) {
      next.q0 = first_query;
      ++next.h;
      more = next.h < (group + 1) * shared;
    }
    if (kQueryStages<kColumns> == 2 && more) {
      stage = 1 - stage;
      begin_queries(next, stage);
      end_copies();
    }
    const uint32_t seen = seen_pairs<kN>(rows, mine);
    if (any(seen != 0)) {
      float s[kN][4], dp[kN][4];
      products<kColumns>(s, keys, q);
      products<kColumns>(dp, values, d);
      PairDraws<kN> draws(key, at, p);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        uint32_t kept = 0;
        if (p.state) kept = draws.kept(n);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int query = n * 8 + 2 * t + i % 2;
          const bool sees = seen >> (4 * n + i) & 1u;
          float score2 = s[n][i] * scale2, through = 1.0f;
          if constexpr (kMode == AttentionMode::capped) {
            const Capped score = capped(s[n][i] * p.scale, p.softcap);
            score2 = score.value * kLog2E;
            through = score.slope;
          }
          const float e = sees ? exp2(score2 - rows.lse[query] * kLog2E) : 0.0f;
          float weight = e, slope = dp[n][i];
          if (p.state) {
            weight = dropped(weight, 1.0f, kept, i);
            slope = dropped(slope, p.mask.kept, kept, i);
          }
          s[n][i] = weight;
          float ds = e * (slope - rows.delta[query]);
          if constexpr (kMode == AttentionMode::capped) ds *= through;
          dp[n][i] = sees ? ds : 0.0f;
        }
      }
      add_weighted<kColumns>(dv, s, d, first_column);
      add_weighted<kColumns>(dk, dp, q, first_column);
    }
  }
  // Computed again: held over the loop, place and count would spill at 256 columns on sm_80.
  const int64_t own = at.k0 + warp() * kWarpRows;
  const int rows_left = at_most(p.tokens - own, kWarpRows);
  V* const to = io.dqkv + (at.b * p.tokens + own) * p.qkv_row + (p.heads + group) * p.width;
  const float kept = p.state ? p.mask.kept : 1.0f;
  store_sums(to, p.qkv_row, keys, dk, p.scale, p.scale, first_column, rows_left, p);
  store_sums(to + p.groups * p.width, p.qkv_row, values, dv, kept, kept, first_column, rows_left,
             p);
}

}  // namespace

template <class V, class Queue>
void attention_backward_mma(Queue& queue, const View& dqkv, const View& delta, const View& dout,
                            const View& qkv, const View& lse, int64_t B, const AttentionSpec& spec,
                            const AttentionProblem& p, int threads) {
  const int block_rows = threads / kWarp * kWarpRows;
  const int64_t tiles = ceil_div(p.tokens, int64_t{block_rows});
  const BackwardTensors<V> io{dqkv.as<V>(), dout.as<const V>(), qkv.as<const V>(),
                              lse.as<const float>(), delta.as<const float>()};
  with_columns(spec.D, [&](auto columns) {
    constexpr int kColumns = columns();
    const auto bytes = [&](int passed) {
      return 2 * (block_rows + passed) * int64_t{kTileRow<kColumns>} * int64_t{sizeof(V)};
    };
    with_mode(p, [&](auto mode) {
      constexpr AttentionMode kMode = mode();
      launch(queue,
             {.blocks = B * spec.H * tiles,
              .threads = threads,
              .shared_bytes = bytes(kStages<kColumns> * kBackwardKeys)},
             "attention_dq_mma", attention_dq_mma_kernel<kColumns, kMode, V>, io, p, tiles);
      launch(queue,
             {.blocks = B * spec.G * tiles,
              .threads = threads,
              .shared_bytes = bytes(kQueryStages<kColumns> * kBackwardQueries<kColumns>),
              .blocks_y = kColumns / kOutColumns<kColumns>},
             "attention_dkv_mma", attention_dkv_mma_kernel<kColumns, kMode, V>, io, p, tiles);
    });
  });
}

template void attention_backward_mma<bf16>(simt::Queue&, const View&, const View&, const View&,
                                           const View&, const View&, int64_t, const AttentionSpec&,
                                           const AttentionProblem&, int);
template void attention_backward_mma<f16>(simt::Queue&, const View&, const View&, const View&,
                                          const View&, const View&, int64_t, const AttentionSpec&,
                                          const AttentionProblem&, int);

}  // namespace snug
