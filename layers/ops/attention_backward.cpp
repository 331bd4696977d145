#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "layers/ops/attention_cudnn.h"
#include "layers/ops/attention_pack.h"
#include "layers/ops/attention_parts.h"
#include "layers/ops/attention_simt.h"

namespace snug {
namespace {

constexpr int64_t kBlock = kAttentionBlock;

// Two ways through the tiles with the same bits, because every element of a gradient is one chain
// over the same terms in the same order:
//   one pass    a thread takes a key/value head with all its query heads and keeps the gradients of
//               all its keys and values in scratch: 5 products a tile;
//   two passes  a thread takes one block of queries (for dq) or of keys (for dk, dv): 7 products a
//               tile, but many more pieces, for few heads or many threads.
bool use_two_passes(int64_t kv_heads, int threads) {
  return 5 * ceil_div(kv_heads, threads) * threads > 7 * kv_heads;
}

constexpr int64_t kHalf = kBlock / 2, kMostQueries = 4, kMostKeys = 4;

struct QueryBlock {
  float *turned, *dout_turned;    // (units of D, queries)
  float *columns, *dout_columns;  // (units of queries, D)
  float *dq, *lse2, *delta;
};
struct KeyBlock {
  float *rows, *columns, *v_rows;  // (keys, units of D), (units of keys, D)
};
struct Scratch {
  QueryBlock q[kMostQueries];
  KeyBlock k[kMostKeys];
  float *rows, *columns, *s, *dp, *ds_keys, *dk, *dv, *factor;
  uint16_t* keep;
  int64_t floats;
};

// How much is in scratch at once.
struct Plan {
  bool two_passes, pairs, dropout;
  int64_t step;              // of the products
  int64_t D, queries, keys;  // blocks that a piece of work takes together
  int64_t key_rows;          // rows of dk and dv

  int64_t wide() const { return round_up(D, kAttentionLanes); }
  int64_t units() const { return in_steps(units_of(D, pairs), step); }
  int64_t tall() const { return in_steps(D, step); }  // rows of dq
  // Floats between rows in units along D: those of floats serve as columns too.
  int64_t row_units() const { return pairs ? round_up(units(), 8) : wide(); }
  // Keys in units along the keys are the A of a product: by columns, or turned to rows.
  bool turned() const { return step > 1; }
};

Plan make_plan(const AttentionBlocks& blocks, const AttentionSpec& spec, int64_t B, int64_t tokens,
               int threads) {
  Plan p{};
  const int64_t heads = B * spec.G, count = ceil_div(tokens, kBlock);
  p.two_passes = use_two_passes(heads, threads);
  p.pairs = blocks.pairs;
  p.step = blocks.step;
  p.dropout = spec.dropout > 0;
  p.D = spec.D;
  p.queries = p.two_passes ? blocks_together(heads, count, threads, kMostQueries)
                           : blocks_together(threads, count, 0, kMostQueries);
  p.keys = p.two_passes ? blocks_together(heads, count, threads, kMostKeys) : 1;
  p.key_rows = p.two_passes ? p.keys * kBlock : keys_in_steps(blocks, tokens);
  return p;
}

Scratch make_scratch(float* data, const Plan& plan) {
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
  s.s = p.take(kBlock * kBlock);
  s.dp = p.take(kBlock * kBlock);
  s.ds_keys = plan.pairs ? p.take(kBlock / 2 * kBlock) : s.dp;
  s.dk = p.take(plan.key_rows * wide);
  s.dv = p.take(plan.key_rows * wide);
  s.factor = p.take(kBlock);
  s.keep =
      plan.dropout ? reinterpret_cast<uint16_t*>(p.take(kBlock * kAttentionWords / 2)) : nullptr;
  s.floats = p.used();
  return s;
}

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
        scale_(spec.scale),
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
      threshold_ = attention_dropout_threshold(spec.dropout);
      kept_ = 1.0f / (1.0f - spec.dropout);
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
    const int64_t last = std::min(T_, first + piece), end = visible(n, last);
    for (int64_t i0 = first; i0 < last; i0 += kBlock)
      load_queries(s, s.q[(i0 - first) / kBlock], b, h, i0);
    for (int64_t j0 = first_keys(b, first); j0 < end; j0 += kBlock) {
      const int64_t keys = std::min(kBlock, n - j0);
      load_keys(s, s.k[0], b, h / (spec_.H / spec_.G), j0, keys);
      for (int64_t i0 = first; i0 < last; i0 += kBlock) {
        const int64_t least = first_keys(b, i0);
        if (j0 < least || j0 >= visible(n, i0 + rows_at(i0))) continue;
        const QueryBlock& q = s.q[(i0 - first) / kBlock];
        tile(s, q, s.k[0], b, h, i0, j0, keys);
        if (key_gradients) add_key_gradients(s, q, h, i0, j0, keys, j0);
        add_query_gradient(s, q, s.k[0], i0, j0, keys, j0 > least);
      }
    }
    for (int64_t i0 = first; i0 < last; i0 += kBlock) {
      const QueryBlock& q = s.q[(i0 - first) / kBlock];
      // Its window begins behind the last key there is: no tile has written dq.
      if (first_keys(b, i0) >= n) std::fill_n(q.dq, plan_.D * kBlock, 0.0f);
      store_query_gradient(s, q, b, h, i0);
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
        for (int64_t i0 = spec_.causal ? first : 0; i0 < T_; i0 += kBlock) {
          const int64_t least = first_keys(b, i0);
          if (least >= first + known) break;  // nor does any later query see these keys
          load_queries(s, s.q[0], b, h, i0);
          for (int64_t j0 = std::max(first, least);
               j0 < std::min(first + known, visible(n, i0 + rows_at(i0))); j0 += kBlock) {
            const int64_t keys = std::min(kBlock, n - j0);
            tile(s, s.q[0], s.k[(j0 - first) / kBlock], b, h, i0, j0, keys);
            add_key_gradients(s, s.q[0], h, i0, j0, keys, j0 - first);
          }
        }
    }
    store_key_gradients(s, b, g, first, last - first, std::max<int64_t>(known, 0));
  }

  // Keys that the queries before `end` see.
  int64_t visible(int64_t keys, int64_t end) const {
    return spec_.causal ? std::min(keys, end) : keys;
  }
  FirstKeys seen_from(int64_t b) const { return {attention_starts(spec_, b, T_), spec_.window, 0}; }
  int64_t first_keys(int64_t b, int64_t i0) const { return seen_from(b).block_of(i0); }
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

  // s = p where it is not dropped, dp = ds of one tile.
  void tile(const Scratch& s, const QueryBlock& q, const KeyBlock& k, int64_t b, int64_t h,
            int64_t i0, int64_t j0, int64_t keys) const {
    const int64_t lanes = lanes_at(i0), ld = plan_.row_units(), units = plan_.units();
    const int64_t padded = keys_in_steps(blocks_, keys);
    const int64_t low = halves(i0, j0, keys) ? kHalf : padded, skipped = low * kBlock + kHalf;
    blocks_.product(s.s, kBlock, k.rows, ld, 1, q.turned, kBlock, low, lanes, units, false);
    blocks_.product(s.dp, kBlock, k.v_rows, ld, 1, q.dout_turned, kBlock, low, lanes, units, false);
    if (low < padded) {
      blocks_.product(s.s + skipped, kBlock, k.rows + low * ld, ld, 1, q.turned + kHalf, kBlock,
                      padded - low, lanes - kHalf, units, false);
      blocks_.product(s.dp + skipped, kBlock, k.v_rows + low * ld, ld, 1, q.dout_turned + kHalf,
                      kBlock, padded - low, lanes - kHalf, units, false);
    }
    if (spec_.causal && j0 + keys - 1 > i0) hide_future(s.s, keys, lanes, j0, i0);
    hide_earlier_keys(s.s, keys, rows_at(i0), j0, seen_from(b), i0);
    hide_padding(s.s, keys, padded);
    if (s.keep)
      blocks_.dropout_bits(s.keep, keys, lanes, key_, static_cast<uint64_t>(first_sample_ + b),
                           static_cast<uint32_t>(i0), static_cast<uint32_t>((h << 18) + j0 / 4),
                           threshold_);
    blocks_.backward_tile(s.s, s.dp, s.ds_keys, padded, lanes, scale_.factor2, q.lse2, q.delta,
                          s.keep, kept_);
  }

  // On the diagonal the first half of the queries sees nothing of the second half of the keys: that
  // quarter of dp is never computed, and no product reads it.
  bool halves(int64_t i0, int64_t j0, int64_t keys) const {
    return spec_.causal && i0 == j0 && keys > kHalf;
  }

  // The first queries that see the keys, of the first head that does, begin the sums.
  void add_key_gradients(const Scratch& s, const QueryBlock& q, int64_t h, int64_t i0, int64_t j0,
                         int64_t keys, int64_t first_row) const {
    const bool more = h % (spec_.H / spec_.G) > 0 || i0 > (spec_.causal ? j0 : 0);
    const int64_t wide = plan_.wide(), padded = keys_in_steps(blocks_, keys);
    const int64_t queries = plan_.step > 1 ? lanes_at(i0) : rows_at(i0);
    const int64_t units = units_of(queries, plan_.pairs);
    const int64_t low = halves(i0, j0, keys) ? kHalf : padded, skip = units_of(kHalf, plan_.pairs);
    const auto add = [&](float* d, const float* p, const float* columns) {
      d += first_row * wide;
      blocks_.product(d, wide, p, kBlock, 1, columns, wide, low, wide, units, more);
      if (low < padded)
        blocks_.product(d + low * wide, wide, p + low * kBlock + skip, kBlock, 1,
                        columns + skip * wide, wide, padded - low, wide, units - skip, more);
    };
    add(s.dv, s.s, q.dout_columns);
    add(s.dk, s.dp, q.columns);
  }

  void add_query_gradient(const Scratch& s, const QueryBlock& q, const KeyBlock& k, int64_t i0,
                          int64_t j0, int64_t keys, bool add_dq) const {
    const int64_t done = halves(i0, j0, keys) ? kHalf : 0;
    const auto add = [&](int64_t lane, int64_t lanes, int64_t summed) {
      blocks_.product(q.dq + lane, kBlock, k.columns, plan_.turned() ? kHalf : 1,
                      plan_.turned() ? 1 : plan_.wide(), s.ds_keys + lane, kBlock, plan_.tall(),
                      lanes, units_of(summed, plan_.pairs), add_dq);
    };
    if (done > 0) add(0, done, done);
    add(done, lanes_at(i0) - done, keys_in_steps(blocks_, keys));
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

void attention_backward_by(const AttentionBlocks& blocks, Context& ctx, const View& dqkv,
                           const View& dout, const View& qkv, const View& out, const View& lse,
                           int64_t B, int64_t T, const AttentionSpec& spec, const View& state) {
  attention_check(spec, B, T, state);
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
    const Plan plan = make_plan(blocks, spec, B, T, ctx.threads());
    scratch = ctx.tensor(kScratch, {ctx.threads(), make_scratch(nullptr, plan).floats}, DType::f32,
                         Category::workspace);
  }
  Op op(ctx, "attention_backward",
        {.flops = 10 * B * H * D * attention_pairs(T, spec),
         .bytes = dqkv.bytes() + dout.bytes() + qkv.bytes() + out.bytes() + lse.bytes(),
         .variant = attention_variant(ctx, blocks, ctx.by_kernels() && scratch.defined())});
  if (!op.run()) return;
  if (ctx.host_reads()) attention_check_values(spec, B, T);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      if constexpr (std::is_same_v<std::decay_t<decltype(queue)>, simt::cuda::Queue>)
        if (scratch.defined())
          return attention_cudnn_backward(queue, dqkv, dout, qkv, out, lse, B, T, spec, state,
                                          scratch);
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
