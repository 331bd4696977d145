#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "layers/ops/attention_backward_plan.h"
#include "layers/ops/attention_cudnn.h"
#include "layers/ops/attention_pack.h"
#include "layers/ops/attention_parts.h"
#include "layers/ops/attention_simt.h"
#include "layers/ops/dropout_mask.h"

namespace snug {
namespace {

using namespace attention_backward_parts;

// Sum of a(d) * b(d) by 16 lanes, folded in a fixed order.
template <class T>
float row_dot(const T* a, const T* b, int64_t n) {
  float lanes[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int64_t l = 0; l < 16; ++l) lanes[l] += to_f32(a[i + l]) * to_f32(b[i + l]);
  for (int64_t l = 0; i < n; ++i, ++l) lanes[l] += to_f32(a[i]) * to_f32(b[i]);
  for (int64_t width = 8; width > 0; width /= 2)
    for (int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

template <class T>
class Backward {
 public:
  Backward(const AttentionBlocks& blocks, Context& ctx, const View& dqkv, const View& dout,
           const View& qkv, const View& lse, const View& delta, int64_t B, int64_t tokens,
           const AttentionSpec& spec, const View& state, const View& scratch)
      : threads_(ctx.threads()),
        blocks_(blocks),
        spec_(spec),
        plan_(make_plan(blocks, spec, B, tokens, ctx.threads())),
        scale_(spec),
        B_(B),
        T_(tokens),
        stride_((spec.H + 2 * spec.G) * spec.D),
        dqkv_(dqkv.as<T>()),
        dout_(dout.as<T>()),
        qkv_(qkv.as<T>()),
        lse_(lse.as<float>()),
        delta_(delta.as<float>()),
        scratch_(scratch) {
    if (spec.dropout > 0) {
      const StepState* step = step_state(state);
      key_ = random_key(step->seed, static_cast<uint64_t>(step->step), spec.site);
      first_sample_ = step->first_sample;
      threshold_ = dropout_threshold(spec.dropout);
      kept_ = dropout_kept(spec.dropout);
    }
  }

  void run(const View& out) const {
    run_delta(out);
    if (plan_.two_passes)
      run_two_passes();
    else
      run_one_pass();
  }

 private:
  void run_delta(const View& out) const {
    const int64_t H = spec_.H, D = spec_.D;
    const T* y = out.as<T>();
    parallel_for(threads_, B_ * T_, [&](int64_t row) {
      for (int64_t h = 0; h < H; ++h)
        delta_[((row / T_) * H + h) * T_ + row % T_] =
            row_dot(dout_ + (row * H + h) * D, y + (row * H + h) * D, D);
    });
  }

  void run_one_pass() const {
    const int64_t group = spec_.H / spec_.G, piece = plan_.queries * kBlock;
    parallel_slots(threads_, B_ * spec_.G, [&](int64_t bg, int slot) {
      const Scratch s = scratch_of(slot);
      if (blocks_.enter) blocks_.enter();
      const int64_t b = bg / spec_.G, g = bg % spec_.G, n = attention_keys(spec_, b, T_);
      for (int64_t j0 = 0; plan_.resident && j0 < n; j0 += kBlock)
        load_keys(s, s.k[j0 / kBlock], b, g, j0, std::min(kBlock, n - j0));
      for (int64_t h = g * group; h < (g + 1) * group; ++h)
        for (int64_t i0 = 0; i0 < T_; i0 += piece) query_piece(s, b, h, i0, true);
      store_key_gradients(s, b, g, 0, T_, n);
      if (blocks_.leave) blocks_.leave();
    });
  }

  void run_two_passes() const {
    const int64_t query_piece_rows = plan_.queries * kBlock, key_piece_rows = plan_.keys * kBlock;
    const int64_t query_pieces = ceil_div(T_, query_piece_rows);
    const int64_t key_pieces = ceil_div(T_, key_piece_rows);
    const int64_t query_units = B_ * spec_.H * query_pieces, key_units = B_ * spec_.G * key_pieces;
    // Key units are the longer ones and come first.
    parallel_slots(threads_, key_units + query_units, [&](int64_t unit, int slot) {
      const Scratch s = scratch_of(slot);
      if (blocks_.enter) blocks_.enter();
      if (unit < key_units) {
        const int64_t bg = unit / key_pieces;
        key_piece(s, bg / spec_.G, bg % spec_.G, unit % key_pieces * key_piece_rows);
      } else {
        const int64_t bh = (unit - key_units) / query_pieces;
        const int64_t i = query_pieces - 1 - (unit - key_units) % query_pieces;
        query_piece(s, bh / spec_.H, bh % spec_.H, i * query_piece_rows, false);
      }
      if (blocks_.leave) blocks_.leave();
    });
  }

  Scratch scratch_of(int slot) const {
    return make_scratch(scratch_.as<float>() + slot * scratch_.shape[1], plan_);
  }

  // Some blocks of queries of one head: dq, and their part of dk and dv if asked for. A block of
  // keys is packed once for all of them.
  void query_piece(const Scratch& s, int64_t b, int64_t h, int64_t first,
                   bool key_gradients) const {
    const int64_t n = attention_keys(spec_, b, T_), piece = plan_.queries * kBlock;
    const int64_t last = std::min(T_, first + piece), end = visible(b, last);
    for (int64_t i0 = first; i0 < last; i0 += kBlock)
      load_queries(s, s.q[(i0 - first) / kBlock], b, h, i0);
    for (int64_t j0 = first_keys(b, first); j0 < end; j0 += plan_.stage * kBlock)
      meet(s, b, h, first, last, j0, std::min(end, j0 + plan_.stage * kBlock), key_gradients);
    for (int64_t i0 = first; i0 < last; i0 += kBlock) {
      const QueryBlock& q = s.q[(i0 - first) / kBlock];
      // Its window begins behind the last key there is: no tile has written dq.
      if (first_keys(b, i0) >= n) std::fill_n(q.dq, plan_.D * kBlock, 0.0f);
      store_query_gradient(s, q, b, h, i0);
    }
  }

  // A stage of keys and, a stage at a time, the queries of a piece.
  void meet(const Scratch& s, int64_t b, int64_t h, int64_t first, int64_t last, int64_t j0,
            int64_t j_end, bool key_gradients) const {
    const int64_t n = attention_keys(spec_, b, T_), stage = plan_.stage * kBlock;
    const auto keys_at = [&](int64_t j) -> const KeyBlock& {
      return s.k[(plan_.resident ? j : j - j0) / kBlock];
    };
    for (int64_t j = j0; !plan_.resident && j < j_end; j += kBlock)
      load_keys(s, keys_at(j), b, h / (spec_.H / spec_.G), j, std::min(kBlock, n - j));
    for (int64_t i0 = first; i0 < last; i0 += stage) {
      const int64_t i_end = std::min(last, i0 + stage);
      const auto sees = [&](int64_t i, int64_t j) {
        return j >= first_keys(b, i) && j < visible(b, i + rows_at(i));
      };
      for (int64_t j = j0; j < j_end; j += kBlock) {
        // Those that see these keys are neighbours.
        int64_t from = i0;
        while (from < i_end && !sees(from, j)) from += kBlock;
        int64_t to = from;
        for (; to < i_end && sees(to, j); to += kBlock)
          tile(s, s.q[(to - first) / kBlock], keys_at(j), b, h, to, j, std::min(kBlock, n - j),
               (to - i0) / kBlock, (j - j0) / kBlock);
        if (key_gradients && from < to)
          add_key_gradients(s, s.q + (from - first) / kBlock, b, h, from, to, (from - i0) / kBlock,
                            j, std::min(kBlock, n - j), j);
      }
      for (int64_t i = i0; i < i_end; i += kBlock) {
        int64_t from = j0;
        while (from < j_end && !sees(i, from)) from += kBlock;
        int64_t to = from;
        while (to < j_end && sees(i, to)) to += kBlock;
        if (from < to)
          add_query_gradient(s, s.q[(i - first) / kBlock], &keys_at(from), i, from, std::min(to, n),
                             (i - i0) / kBlock, (from - j0) / kBlock, from > first_keys(b, i));
      }
    }
  }

  // Some blocks of keys: dk and dv. A block of queries is packed once for all of them.
  void key_piece(const Scratch& s, int64_t b, int64_t g, int64_t first) const {
    const int64_t n = attention_keys(spec_, b, T_), group = spec_.H / spec_.G;
    const int64_t last = std::min(T_, first + plan_.keys * kBlock);
    const int64_t known = std::min(last, n) - first;  // negative: only padding here
    if (known > 0) {
      for (int64_t j0 = first; j0 < first + known; j0 += kBlock)
        load_keys(s, s.k[(j0 - first) / kBlock], b, g, j0, std::min(kBlock, n - j0));
      for (int64_t h = g * group; h < (g + 1) * group; ++h)
        for (int64_t i0 = first_queries(b, first); i0 < T_; i0 += kBlock) {
          const int64_t least = first_keys(b, i0);
          if (least >= first + known) break;  // nor does any later query see these keys
          load_queries(s, s.q[0], b, h, i0);
          for (int64_t j0 = std::max(first, least);
               j0 < std::min(first + known, visible(b, i0 + rows_at(i0))); j0 += kBlock) {
            const int64_t keys = std::min(kBlock, n - j0);
            tile(s, s.q[0], s.k[(j0 - first) / kBlock], b, h, i0, j0, keys, 0, 0);
            add_key_gradients(s, s.q, b, h, i0, i0 + kBlock, 0, j0, keys, j0 - first);
          }
        }
    }
    store_key_gradients(s, b, g, first, last - first, std::max<int64_t>(known, 0));
  }

  // Keys that the queries before `end` see.
  int64_t visible(int64_t b, int64_t end) const { return seen(b).end(end - 1); }
  SeenKeys seen(int64_t b) const {
    return {attention_starts(spec_, b, T_),
            attention_ends(spec_, b, T_),
            spec_.window,
            0,
            attention_keys(spec_, b, T_),
            spec_.causal};
  }
  int64_t first_keys(int64_t b, int64_t i0) const { return seen(b).first_block(i0); }
  // The first block of queries that see keys of the block from j0 on. Who is in one document sees
  // each other, so without causal it is where the first key's document begins.
  int64_t first_queries(int64_t b, int64_t j0) const {
    return spec_.causal ? j0 : first_keys(b, j0);
  }
  int64_t rows_at(int64_t i0) const { return std::min(kBlock, T_ - i0); }
  // Queries of a tile as products take them: also where they are what is summed.
  int64_t lanes_at(int64_t i0) const {
    return round_up(rows_at(i0), plan_.step > 1 ? 2 * plan_.step : kAttentionLanes);
  }

  void load_queries(const Scratch& s, const QueryBlock& q, int64_t b, int64_t h, int64_t i0) const {
    const int64_t rows = rows_at(i0), H = spec_.H, row = b * T_ + i0;
    load_both(s, q.turned, q.columns, qkv_ + row * stride_ + h * spec_.D, stride_, rows,
              lanes_at(i0), scale_.flip);
    load_both(s, q.dout_turned, q.dout_columns, dout_ + (row * H + h) * spec_.D, H * spec_.D, rows,
              lanes_at(i0), false);
    const int64_t statistics = (b * H + h) * T_ + i0;
    for (int64_t i = 0; i < lanes_at(i0); ++i) {
      q.lse2[i] = i < rows ? lse_[statistics + i] * static_cast<float>(ScoreScale::kLog2E) : 0.0f;
      q.delta[i] = i < rows ? delta_[statistics + i] : 0.0f;
    }
    for (int64_t i = 0; q.sees && i < kBlock; ++i) {
      q.sees[i] = i < rows ? static_cast<int32_t>(seen(b).first(i0 + i)) : 0;
      q.sees[kBlock + i] = i < rows ? static_cast<int32_t>(seen(b).end(i0 + i)) : 0;
    }
  }

  void load_both(const Scratch& s, float* turned, float* columns, const T* x, int64_t stride,
                 int64_t rows, int64_t lanes, bool flip) const {
    const int64_t wide = plan_.wide(), D = spec_.D;
    const bool pairs = plan_.pairs;
    pack_columns(columns, wide, x, stride, rows, D, pairs);
    if (plan_.step > 1) clear_rows(columns, wide, units_of(rows, pairs), units_of(lanes, pairs));
    if (flip) flip_signs(columns, units_of(rows, pairs) * wide, pairs);
    float* by_rows = pairs ? s.rows : columns;
    if (pairs) {
      pack_rows(by_rows, plan_.row_units(), x, stride, rows, D, true);
      if (flip) flip_signs(by_rows, rows * plan_.row_units(), true);
    }
    turn_block(turned, by_rows, plan_.row_units(), rows, plan_.units(), lanes, kBlock);
  }

  void load_keys(const Scratch& s, const KeyBlock& to, int64_t b, int64_t g, int64_t j0,
                 int64_t keys) const {
    const int64_t D = spec_.D;
    const T *k = qkv_ + (b * T_ + j0) * stride_ + (spec_.H + g) * D, *v = k + spec_.G * D;
    pack_rows(to.rows, plan_.row_units(), k, stride_, keys, D, plan_.pairs);
    pack_rows(to.v_rows, plan_.row_units(), v, stride_, keys, D, plan_.pairs);
    if (plan_.turned()) {
      const int64_t padded = keys_in_steps(blocks_, keys), wide = plan_.wide();
      clear_rows(to.rows, plan_.row_units(), keys, padded);
      clear_rows(to.v_rows, plan_.row_units(), keys, padded);
      pack_columns(s.columns, wide, k, stride_, keys, D, plan_.pairs);
      turn_block(to.columns, s.columns, wide, units_of(keys, plan_.pairs), D,
                 units_of(padded, plan_.pairs), kHalf);
    } else if (plan_.pairs) {
      pack_columns(to.columns, plan_.wide(), k, stride_, keys, D, true);
    }
    const int64_t next_keys = std::min(kBlock, T_ - j0 - kBlock);
    prefetch_rows(k + kBlock * stride_, stride_, next_keys, D);
    prefetch_rows(v + kBlock * stride_, stride_, next_keys, D);
  }

  // s = p where it is not dropped, dp = ds of one tile, that of blocks i and j of a stage.
  void tile(const Scratch& s, const QueryBlock& q, const KeyBlock& k, int64_t b, int64_t h,
            int64_t i0, int64_t j0, int64_t keys, int64_t i, int64_t j) const {
    if (blocks_.fused) return fused_tile(s, q, k, b, h, i0, j0, keys, i, j);
    const int64_t lanes = lanes_at(i0), ld = plan_.row_units(), units = plan_.units();
    const int64_t low = halves(i0, j0, keys) ? kHalf : keys, skipped = low * kBlock + kHalf;
    float *scores = s.s[i], *dp = s.dp[i];
    blocks_.product(scores, kBlock, k.rows, ld, 1, q.turned, kBlock, low, lanes, units, false);
    blocks_.product(dp, kBlock, k.v_rows, ld, 1, q.dout_turned, kBlock, low, lanes, units, false);
    if (low < keys) {
      blocks_.product(scores + skipped, kBlock, k.rows + low * ld, ld, 1, q.turned + kHalf, kBlock,
                      keys - low, lanes - kHalf, units, false);
      blocks_.product(dp + skipped, kBlock, k.v_rows + low * ld, ld, 1, q.dout_turned + kHalf,
                      kBlock, keys - low, lanes - kHalf, units, false);
    }
    if (scale_.inner > 0) cap_scores(scores, s.slope, keys, lanes, scale_.inner);
    if (spec_.causal && j0 + keys - 1 > i0) hide_future(scores, keys, lanes, j0, i0);
    hide_earlier_keys(scores, keys, rows_at(i0), j0, seen(b), i0);
    if (spec_.document_end.defined()) hide_later_keys(scores, keys, rows_at(i0), j0, seen(b), i0);
    if (s.keep)
      blocks_.dropout_bits(s.keep, keys, lanes, key_, static_cast<uint64_t>(first_sample_ + b),
                           static_cast<uint32_t>(i0), static_cast<uint32_t>((h << 20) + j0),
                           threshold_);
    blocks_.backward_tile(scores, dp, s.ds_keys[j][i], keys, lanes, scale_.factor2, q.lse2, q.delta,
                          s.keep, kept_);
    if (!s.slope) return;
    // ds of the capped scores becomes that of the scores. Units are floats here, so ds_keys is dp.
    for (int64_t key = 0; key < keys; ++key)
      for (int64_t lane = 0; lane < lanes; ++lane)
        dp[key * kBlock + lane] *= s.slope[key * kBlock + lane];
  }

  void fused_tile(const Scratch& s, const QueryBlock& q, const KeyBlock& k, int64_t b, int64_t h,
                  int64_t i0, int64_t j0, int64_t keys, int64_t i, int64_t j) const {
    const int64_t padded = keys_in_steps(blocks_, keys), rows = rows_at(i0), ld = plan_.row_units();
    FusedBackwardTile t{};
    t.s = s.scores;
    t.dp = s.dp_lanes;
    t.first_key = static_cast<int32_t>(j0);
    t.keys = padded;
    t.factor2 = scale_.factor2;
    t.kept = kept_;
    t.keep = s.keep;
    for (int64_t lane = 0; lane < lanes_at(i0); lane += kFusedLanes) {
      blocks_.product(s.scores, kFusedLanes, k.rows, ld, 1, q.turned + lane, kBlock, padded,
                      kFusedLanes, plan_.units(), false);
      blocks_.product(s.dp_lanes, kFusedLanes, k.v_rows, ld, 1, q.dout_turned + lane, kBlock,
                      padded, kFusedLanes, plan_.units(), false);
      if (s.keep)
        blocks_.dropout_bits(
            s.keep, padded, kFusedLanes, key_, static_cast<uint64_t>(first_sample_ + b),
            static_cast<uint32_t>(i0 + lane), static_cast<uint32_t>((h << 20) + j0), threshold_);
      const int64_t last = std::min(lane + kFusedLanes, rows) - 1;
      const bool all = last >= lane && q.sees[last] <= j0 && q.sees[kBlock + lane] >= j0 + padded;
      t.sees = all ? nullptr : q.sees + lane;
      t.lse2 = q.lse2 + lane;
      t.delta = q.delta + lane;
      t.p = s.s[i] + lane / 2;
      t.ds = s.dp[i] + lane / 2;
      t.ds_keys = s.ds_keys[j][i] + lane;
      blocks_.fused->backward(t);
    }
  }

  // On the diagonal the first half of the queries sees nothing of the second half of the keys: that
  // quarter of dp is never computed, and no product reads it.
  bool halves(int64_t i0, int64_t j0, int64_t keys) const {
    return spec_.causal && i0 == j0 && keys > kHalf;
  }

  // Sums over the blocks of queries [i0, i_end), whose tiles begin at number `tile`. The first
  // queries that see the keys, of the first head that does, begin the sums.
  void add_key_gradients(const Scratch& s, const QueryBlock* q, int64_t b, int64_t h, int64_t i0,
                         int64_t i_end, int64_t tile, int64_t j0, int64_t keys,
                         int64_t first_row) const {
    const bool more = h % (spec_.H / spec_.G) > 0 || i0 > first_queries(b, j0);
    float *dv = s.dv + first_row * plan_.wide(), *dk = s.dk + first_row * plan_.wide();
    if (blocks_.product_of_blocks) {
      const int64_t padded = keys_in_steps(blocks_, keys), wide = plan_.wide();
      const bool several = plan_.stage > 1;
      const int64_t a_block = several ? s.s[1] - s.s[0] : 0;
      const int64_t b_block = several ? s.q[1].columns - s.q[0].columns : 0;
      const auto add = [&](float* d, const float* p, const float* columns) {
        const int64_t blocks = ceil_div(i_end - i0, kBlock);
        const BlocksOfSum sum{blocks, a_block, b_block, kHalf,
                              units_of(lanes_at(i0 + (blocks - 1) * kBlock), true)};
        blocks_.product_of_blocks(d, wide, p, kHalf, columns, wide, padded, wide, sum, more);
      };
      add(dv, s.s[tile], q->dout_columns);
      add(dk, s.dp[tile], q->columns);
      return;
    }
    add_tile_to(dv, s.s[tile], q->dout_columns, i0, j0, keys, more);
    add_tile_to(dk, s.dp[tile], q->columns, i0, j0, keys, more);
  }
  void add_tile_to(float* d, const float* p, const float* columns, int64_t i0, int64_t j0,
                   int64_t keys, bool more) const {
    const int64_t wide = plan_.wide(), units = units_of(rows_at(i0), plan_.pairs);
    const int64_t low = halves(i0, j0, keys) ? kHalf : keys, skip = units_of(kHalf, plan_.pairs);
    blocks_.product(d, wide, p, kBlock, 1, columns, wide, low, wide, units, more);
    if (low < keys)
      blocks_.product(d + low * wide, wide, p + low * kBlock + skip, kBlock, 1,
                      columns + skip * wide, wide, keys - low, wide, units - skip, more);
  }

  // Sums over the keys [j0, j_end), whose blocks and tiles begin at number `k` and `tile_key`.
  void add_query_gradient(const Scratch& s, const QueryBlock& q, const KeyBlock* k, int64_t i0,
                          int64_t j0, int64_t j_end, int64_t tile, int64_t tile_key,
                          bool add_dq) const {
    if (blocks_.product_of_blocks) {
      const int64_t blocks = ceil_div(j_end - j0, kBlock);
      const int64_t last = keys_in_steps(blocks_, j_end - j0 - (blocks - 1) * kBlock);
      const bool several = plan_.stage > 1;
      const BlocksOfSum sum{blocks, several ? s.k[1].columns - s.k[0].columns : 0,
                            several ? s.ds_keys[1][0] - s.ds_keys[0][0] : 0, kHalf,
                            units_of(last, true)};
      blocks_.product_of_blocks(q.dq, kBlock, k->columns, kHalf, s.ds_keys[tile_key][tile], kBlock,
                                plan_.tall(), lanes_at(i0), sum, add_dq);
      return;
    }
    const int64_t keys = j_end - j0, done = halves(i0, j0, keys) ? kHalf : 0;
    const auto add = [&](int64_t lane, int64_t lanes, int64_t summed) {
      blocks_.product(q.dq + lane, kBlock, k->columns, 1, plan_.wide(), s.ds_keys[0][0] + lane,
                      kBlock, plan_.tall(), lanes, units_of(summed, plan_.pairs), add_dq);
    };
    if (done > 0) add(0, done, done);
    add(done, lanes_at(i0) - done, keys);
  }

  void store_query_gradient(const Scratch& s, const QueryBlock& q, int64_t b, int64_t h,
                            int64_t i0) const {
    std::fill_n(s.factor, kBlock, spec_.scale);
    store_turned(dqkv_ + (b * T_ + i0) * stride_ + h * spec_.D, stride_, q.dq, rows_at(i0), spec_.D,
                 s.factor);
  }

  // Rows [j0, j0 + rows); those from `known` on are of keys nobody sees.
  void store_key_gradients(const Scratch& s, int64_t b, int64_t g, int64_t j0, int64_t rows,
                           int64_t known) const {
    const int64_t D = spec_.D, wide = plan_.wide();
    T* dk = dqkv_ + (b * T_ + j0) * stride_ + (spec_.H + g) * D;
    T* dv = dk + spec_.G * D;
    for (int64_t j = 0; j < known; ++j) {
      store_row(dk + j * stride_, s.dk + j * wide, D, scale_.positive);
      store_row(dv + j * stride_, s.dv + j * wide, D, kept_);
    }
    for (int64_t j = known; j < rows; ++j) {
      std::fill_n(dk + j * stride_, D, T{});
      std::fill_n(dv + j * stride_, D, T{});
    }
  }

  int threads_;
  const AttentionBlocks& blocks_;
  const AttentionSpec& spec_;
  Plan plan_;
  ScoreScale scale_;
  int64_t B_, T_, stride_;
  T* dqkv_;
  const T *dout_, *qkv_;
  const float* lse_;
  float* delta_;
  View scratch_;
  RandomKey key_{};
  int64_t first_sample_ = 0;
  uint32_t threshold_ = 0;
  float kept_ = 1;
};

}  // namespace

void attention_backward_by(const AttentionBlocks& asked, Context& ctx, const View& dqkv,
                           const View& dout, const View& qkv, const View& out, const View& lse,
                           int64_t B, int64_t T, const AttentionSpec& spec, const View& state) {
  attention_check(spec, B, T, state);
  const AttentionBlocks& blocks = blocks_for(asked, spec);
  const int64_t H = spec.H, D = spec.D, width = (H + 2 * spec.G) * D;
  expect(dqkv, "dqkv", {{"B*T", B * T}, {"(H+2G)*D", width}});
  expect(dout, "dout", {{"B*T", B * T}, {"H*D", H * D}});
  expect(qkv, "qkv", {{"B*T", B * T}, {"(H+2G)*D", width}});
  expect(out, "out", {{"B*T", B * T}, {"H*D", H * D}});
  expect(lse, "lse", {{"B", B}, {"H", H}, {"T", T}});
  expect_dtype(lse, "lse", {DType::f32});
  attention_check_dtype(qkv);
  expect_dtype(dqkv, "dqkv", {qkv.dtype});
  expect_dtype(dout, "dout", {qkv.dtype});
  expect_dtype(out, "out", {qkv.dtype});

  static const Name kDelta("attention_delta"), kScratch("attention_scratch");
  const Tensor delta = ctx.tensor(kDelta, {B, H, T}, DType::f32, Category::workspace);
  Tensor scratch;
  if (ctx.by_kernels()) {
    scratch = attention_cudnn_workspace(ctx, qkv, B, T, spec, true);
  } else {
    const int64_t floats = most_of_windows(spec, B, T, [&](int64_t b, int64_t t) {
      return make_scratch(nullptr, make_plan(blocks, spec, b, t, ctx.threads())).floats;
    });
    scratch = ctx.tensor(kScratch, {ctx.threads(), floats}, DType::f32, Category::workspace);
  }
  Op op(ctx, spec.dropout > 0 ? "attention_dropout_backward" : "attention_backward",
        {.flops = 10 * B * H * D * attention_pairs(T, spec),
         .bytes = dqkv.bytes() + dout.bytes() + qkv.bytes() + out.bytes() + lse.bytes(),
         .variant = attention_variant(ctx, blocks, ctx.by_kernels() && scratch.defined())});
  if (!op.run()) return;
  if (ctx.host_reads()) attention_check_values(spec, B, T);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      if constexpr (std::is_same_v<std::decay_t<decltype(queue)>, simt::cuda::Queue>)
        if (scratch.defined())
          return attention_cudnn_backward(queue, dqkv, dout, qkv, out, lse, B, T, spec, scratch);
      attention_backward_on(queue, dqkv, delta, dout, qkv, out, lse, B, T, spec, state);
    });
  dispatch_float(qkv, "qkv", [&](auto value) {
    Backward<decltype(value)>(blocks, ctx, dqkv, dout, qkv, lse, delta, B, T, spec, state, scratch)
        .run(out);
  });
}

void attention_backward(Context& ctx, const View& dqkv, const View& dout, const View& qkv,
                        const View& out, const View& lse, int64_t B, int64_t T,
                        const AttentionSpec& spec, const View& state) {
  attention_backward_by(attention_blocks(qkv.dtype), ctx, dqkv, dout, qkv, out, lse, B, T, spec,
                        state);
}

}  // namespace snug
