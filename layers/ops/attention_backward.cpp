#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/memory/step_state.h"
#include "layers/ops/attention_parts.h"

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

struct Scratch {
  float *q, *q_turned, *dout, *dout_turned, *k, *v, *s, *dp, *mask, *dq, *dk, *dv, *factor;
  int64_t floats;
};

Scratch make_scratch(float* data, int64_t D, int64_t key_rows, bool dropout) {
  const int64_t wide = round_up(D, kAttentionLanes);
  ScratchPieces p(data);
  Scratch s{};
  s.q = p.take(kBlock * wide);
  s.q_turned = p.take(kBlock * D);
  s.dout = p.take(kBlock * wide);
  s.dout_turned = p.take(kBlock * D);
  s.k = p.take(kBlock * D);
  s.v = p.take(kBlock * D);
  s.s = p.take(kBlock * kBlock);
  s.dp = p.take(kBlock * kBlock);
  s.mask = dropout ? p.take(kBlock * kBlock) : nullptr;
  s.dq = p.take(kBlock * D);
  s.dk = p.take(key_rows * wide);
  s.dv = p.take(key_rows * wide);
  s.factor = p.take(2 * kBlock);
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
  Backward(Context& ctx, const View& dqkv, const View& dout, const View& qkv, const View& lse,
           const View& delta, int64_t B, int64_t tokens, const AttentionSpec& spec,
           const View& state)
      : threads_(ctx.threads()),
        blocks_(attention_blocks()),
        spec_(spec),
        B_(B),
        T_(tokens),
        wide_(round_up(spec.D, kAttentionLanes)),
        stride_((spec.H + 2 * spec.G) * spec.D),
        dqkv_(dqkv.as<T>()),
        dout_(dout.as<T>()),
        qkv_(qkv.as<T>()),
        lse_(lse.as<float>()),
        delta_(delta.as<float>()) {
    if (spec.dropout > 0) {
      const StepState* step = step_state(state);
      key_ = random_key(step->seed, static_cast<uint64_t>(step->step), spec.site);
      first_sample_ = step->first_sample;
    }
  }

  void run_delta(const View& out) {
    const int64_t H = spec_.H, D = spec_.D;
    const T* y = out.as<T>();
    parallel_for(threads_, B_ * T_, [&](int64_t row) {
      for (int64_t h = 0; h < H; ++h)
        delta_[((row / T_) * H + h) * T_ + row % T_] =
            row_dot(dout_ + (row * H + h) * D, y + (row * H + h) * D, D);
    });
  }

  void run_one_pass(const View& scratch) {
    const int64_t group = spec_.H / spec_.G;
    parallel_slots(threads_, B_ * spec_.G, [&](int64_t bg, int slot) {
      const Scratch s = scratch_of(scratch, slot);
      const int64_t b = bg / spec_.G, g = bg % spec_.G, n = attention_keys(spec_, b, T_);
      std::fill_n(s.dk, n * wide_, 0.0f);
      std::fill_n(s.dv, n * wide_, 0.0f);
      for (int64_t h = g * group; h < (g + 1) * group; ++h)
        for (int64_t i0 = 0; i0 < T_; i0 += kBlock) {
          load_queries(s, b, h, i0);
          const int64_t end = visible(n, i0);
          for (int64_t j0 = 0; j0 < end; j0 += kBlock) {
            const int64_t keys = std::min(kBlock, n - j0);
            load_keys(s, b, g, j0, keys);
            tile(s, b, h, i0, j0, keys);
            add_key_gradients(s, i0, keys, j0);
            add_query_gradient(s, i0, keys, j0 > 0);
          }
          store_query_gradient(s, b, h, i0);
        }
      store_key_gradients(s, b, g, 0, T_, n);
    });
  }

  void run_two_passes(const View& scratch) {
    const int64_t pieces = ceil_div(T_, kBlock);
    const int64_t query_units = B_ * spec_.H * pieces, key_units = B_ * spec_.G * pieces;
    // Key units are the longer ones and come first.
    parallel_slots(threads_, key_units + query_units, [&](int64_t unit, int slot) {
      const Scratch s = scratch_of(scratch, slot);
      if (unit < key_units)
        key_unit(s, unit / pieces / spec_.G, unit / pieces % spec_.G, unit % pieces * kBlock);
      else
        query_unit(s, (unit - key_units) / pieces / spec_.H, (unit - key_units) / pieces % spec_.H,
                   (pieces - 1 - unit % pieces) * kBlock);
    });
  }

  static int64_t key_rows(int64_t tokens, bool two_passes) {
    return two_passes ? std::min(kBlock, tokens) : tokens;
  }

 private:
  Scratch scratch_of(const View& scratch, int slot) const {
    return make_scratch(scratch.as<float>() + slot * scratch.shape[1], spec_.D,
                        key_rows(T_, use_two_passes(B_ * spec_.G, threads_)), spec_.dropout > 0);
  }

  void query_unit(const Scratch& s, int64_t b, int64_t h, int64_t i0) {
    const int64_t n = attention_keys(spec_, b, T_), end = visible(n, i0);
    load_queries(s, b, h, i0);
    for (int64_t j0 = 0; j0 < end; j0 += kBlock) {
      const int64_t keys = std::min(kBlock, n - j0);
      load_keys(s, b, h / (spec_.H / spec_.G), j0, keys);
      tile(s, b, h, i0, j0, keys);
      add_query_gradient(s, i0, keys, j0 > 0);
    }
    store_query_gradient(s, b, h, i0);
  }

  void key_unit(const Scratch& s, int64_t b, int64_t g, int64_t j0) {
    const int64_t n = attention_keys(spec_, b, T_), group = spec_.H / spec_.G;
    const int64_t keys = std::min(kBlock, n - j0);  // may be negative: only padding here
    if (keys > 0) {
      load_keys(s, b, g, j0, keys);
      std::fill_n(s.dk, keys * wide_, 0.0f);
      std::fill_n(s.dv, keys * wide_, 0.0f);
      for (int64_t h = g * group; h < (g + 1) * group; ++h)
        for (int64_t i0 = spec_.causal ? j0 : 0; i0 < T_; i0 += kBlock) {
          load_queries(s, b, h, i0);
          tile(s, b, h, i0, j0, keys);
          add_key_gradients(s, i0, keys, 0);
        }
    }
    store_key_gradients(s, b, g, j0, std::min(kBlock, T_ - j0), std::max<int64_t>(keys, 0));
  }

  int64_t visible(int64_t keys, int64_t i0) const {
    return spec_.causal ? std::min(keys, i0 + rows_at(i0)) : keys;
  }
  int64_t rows_at(int64_t i0) const { return std::min(kBlock, T_ - i0); }
  int64_t lanes_at(int64_t i0) const { return round_up(rows_at(i0), kAttentionLanes); }

  void load_queries(const Scratch& s, int64_t b, int64_t h, int64_t i0) const {
    const int64_t rows = rows_at(i0), H = spec_.H, D = spec_.D, row = b * T_ + i0;
    load_block(s.q, wide_, qkv_ + row * stride_ + h * D, stride_, rows, D, spec_.scale);
    load_block(s.dout, wide_, dout_ + (row * H + h) * D, H * D, rows, D, 1.0f);
    turn_block(s.q_turned, s.q, wide_, rows, D);
    turn_block(s.dout_turned, s.dout, wide_, rows, D);
    const int64_t statistics = (b * H + h) * T_ + i0;
    for (int64_t i = 0; i < lanes_at(i0); ++i) {
      s.factor[i] = i < rows ? lse_[statistics + i] : 0.0f;
      s.factor[kBlock + i] = i < rows ? delta_[statistics + i] : 0.0f;
    }
  }

  void load_keys(const Scratch& s, int64_t b, int64_t g, int64_t j0, int64_t keys) const {
    const T* k = qkv_ + (b * T_ + j0) * stride_ + (spec_.H + g) * spec_.D;
    load_block(s.k, spec_.D, k, stride_, keys, spec_.D, 1.0f);
    load_block(s.v, spec_.D, k + spec_.G * spec_.D, stride_, keys, spec_.D, 1.0f);
    const T* next = k + kBlock * stride_;
    const int64_t next_keys = std::min(kBlock, T_ - j0 - kBlock);
    prefetch_rows(next, stride_, next_keys, spec_.D);
    prefetch_rows(next + spec_.G * spec_.D, stride_, next_keys, spec_.D);
  }

  // s = mask * p, dp = ds of one tile.
  void tile(const Scratch& s, int64_t b, int64_t h, int64_t i0, int64_t j0, int64_t keys) const {
    const int64_t D = spec_.D, lanes = lanes_at(i0);
    blocks_.product(s.s, kBlock, s.k, D, 1, s.q_turned, kBlock, keys, lanes, D, false);
    if (spec_.causal && j0 + keys - 1 > i0) hide_future(s.s, keys, lanes, j0, i0);
    blocks_.product(s.dp, kBlock, s.v, D, 1, s.dout_turned, kBlock, keys, lanes, D, false);
    if (spec_.dropout > 0)
      blocks_.dropout_mask(s.mask, keys, lanes, key_, static_cast<uint64_t>(first_sample_ + b),
                           static_cast<uint32_t>(i0), static_cast<uint32_t>((h << 18) + j0 / 4),
                           spec_.dropout, 1.0f / (1.0f - spec_.dropout));
    blocks_.backward_tile(s.s, s.dp, s.mask, keys, lanes, s.factor, s.factor + kBlock);
  }

  void add_key_gradients(const Scratch& s, int64_t i0, int64_t keys, int64_t first_row) const {
    const int64_t rows = rows_at(i0);
    blocks_.product(s.dv + first_row * wide_, wide_, s.s, kBlock, 1, s.dout, wide_, keys, wide_,
                    rows, true);
    blocks_.product(s.dk + first_row * wide_, wide_, s.dp, kBlock, 1, s.q, wide_, keys, wide_, rows,
                    true);
  }

  void add_query_gradient(const Scratch& s, int64_t i0, int64_t keys, bool add) const {
    blocks_.product(s.dq, kBlock, s.k, 1, spec_.D, s.dp, kBlock, spec_.D, lanes_at(i0), keys, add);
  }

  void store_query_gradient(const Scratch& s, int64_t b, int64_t h, int64_t i0) const {
    std::fill_n(s.factor, kBlock, spec_.scale);
    store_turned(dqkv_ + (b * T_ + i0) * stride_ + h * spec_.D, stride_, s.dq, rows_at(i0), spec_.D,
                 s.factor);
  }

  // Rows [j0, j0 + rows); those from `known` on are of keys nobody sees.
  void store_key_gradients(const Scratch& s, int64_t b, int64_t g, int64_t j0, int64_t rows,
                           int64_t known) const {
    const int64_t D = spec_.D;
    T* dk = dqkv_ + (b * T_ + j0) * stride_ + (spec_.H + g) * D;
    T* dv = dk + spec_.G * D;
    for (int64_t j = 0; j < rows; ++j)
      for (int64_t d = 0; d < D; ++d) {
        dk[j * stride_ + d] = from_f32<T>(j < known ? s.dk[j * wide_ + d] : 0.0f);
        dv[j * stride_ + d] = from_f32<T>(j < known ? s.dv[j * wide_ + d] : 0.0f);
      }
  }

  int threads_;
  const AttentionBlocks& blocks_;
  const AttentionSpec& spec_;
  int64_t B_, T_, wide_, stride_;
  T* dqkv_;
  const T *dout_, *qkv_;
  const float* lse_;
  float* delta_;
  RandomKey key_{};
  int64_t first_sample_ = 0;
};

template <class T>
void backward_typed(Context& ctx, const View& dqkv, const View& dout, const View& qkv,
                    const View& out, const View& lse, const View& delta, int64_t B, int64_t tokens,
                    const AttentionSpec& spec, const View& state, const View& scratch) {
  Backward<T> backward(ctx, dqkv, dout, qkv, lse, delta, B, tokens, spec, state);
  backward.run_delta(out);
  if (use_two_passes(B * spec.G, ctx.threads()))
    backward.run_two_passes(scratch);
  else
    backward.run_one_pass(scratch);
}

}  // namespace

void attention_backward(Context& ctx, const View& dqkv, const View& dout, const View& qkv,
                        const View& out, const View& lse, int64_t B, int64_t T,
                        const AttentionSpec& spec, const View& state) {
  attention_check(spec, B, T, state);
  const int64_t H = spec.H, D = spec.D, width = (H + 2 * spec.G) * D;
  expect(dqkv, "dqkv", {{"B*T", B * T}, {"(H+2G)*D", width}});
  expect(dout, "dout", {{"B*T", B * T}, {"H*D", H * D}});
  expect(qkv, "qkv", {{"B*T", B * T}, {"(H+2G)*D", width}});
  expect(out, "out", {{"B*T", B * T}, {"H*D", H * D}});
  expect(lse, "lse", {{"B", B}, {"H", H}, {"T", T}});
  expect_dtype(lse, "lse", {DType::f32});
  if (qkv.dtype != DType::f32 && qkv.dtype != DType::bf16) attention_wrong_dtype(qkv);
  expect_dtype(dqkv, "dqkv", {qkv.dtype});
  expect_dtype(dout, "dout", {qkv.dtype});
  expect_dtype(out, "out", {qkv.dtype});

  static const Name kDelta("attention_delta"), kScratch("attention_scratch");
  const bool two_passes = use_two_passes(B * spec.G, ctx.threads());
  const int64_t rows = Backward<float>::key_rows(T, two_passes);
  const int64_t floats = make_scratch(nullptr, D, rows, spec.dropout > 0).floats;
  const Tensor delta = ctx.tensor(kDelta, {B, H, T}, DType::f32, Category::workspace);
  const Tensor scratch =
      ctx.tensor(kScratch, {ctx.threads(), floats}, DType::f32, Category::workspace);
  Op op(ctx, "attention_backward",
        {.flops = 10 * B * H * D * attention_pairs(T, spec.causal),
         .bytes = dqkv.bytes() + dout.bytes() + qkv.bytes() + out.bytes() + lse.bytes()});
  if (!op.run()) return;
  attention_check_key_lengths(spec, B, T);
  if (qkv.dtype == DType::f32)
    backward_typed<float>(ctx, dqkv, dout, qkv, out, lse, delta, B, T, spec, state, scratch);
  else if (qkv.dtype == DType::bf16)
    backward_typed<bf16>(ctx, dqkv, dout, qkv, out, lse, delta, B, T, spec, state, scratch);
  else
    attention_wrong_dtype(qkv);
}

}  // namespace snug
