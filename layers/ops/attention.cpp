#include "layers/ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/memory/step_state.h"
#include "layers/ops/attention_cudnn.h"
#include "layers/ops/attention_fused_forward.h"
#include "layers/ops/attention_pack.h"
#include "layers/ops/attention_parts.h"
#include "layers/ops/attention_simt.h"
#include "layers/ops/document_start.h"
#include "layers/ops/dropout_mask.h"

namespace snug {
namespace {

constexpr int64_t kBlock = kAttentionBlock;

constexpr int64_t kHalf = kBlock / 2, kMostTogether = 8;

struct QueryScratch {
  float *turned, *out, *top, *sum;
};
struct ForwardScratch {
  QueryScratch q[kMostTogether];
  float *rows, *k, *columns, *s, *factor;
  uint16_t* keep;
  int64_t floats, units, row_units;  // units of D; between rows
};

ForwardScratch forward_scratch(float* data, const AttentionBlocks& blocks, int64_t D,
                               int64_t together, bool dropout) {
  ScratchPieces p(data);
  ForwardScratch s{};
  s.units = units_of(D, blocks.pairs);
  s.row_units = round_up(s.units, 8);
  for (int64_t g = 0; g < together; ++g) {
    s.q[g].turned = p.take(s.units * kBlock);
    s.q[g].out = p.take(D * kBlock);
    s.q[g].top = p.take(kBlock);
    s.q[g].sum = p.take(kBlock);
  }
  s.rows = p.take(kBlock * s.row_units);
  s.k = p.take(kBlock * s.row_units);
  s.columns = p.take(units_of(kBlock, blocks.pairs) * round_up(D, 8));
  s.s = p.take(kBlock * kBlock);
  s.factor = p.take(kBlock);
  s.keep = dropout ? reinterpret_cast<uint16_t*>(p.take(kBlock * kAttentionWords / 2)) : nullptr;
  s.floats = p.used();
  return s;
}

template <class T>
class Forward {
 public:
  Forward(const AttentionBlocks& blocks, const AttentionSpec& spec, const ForwardHead<T>& head,
          const ForwardScratch& scratch)
      : blocks_(blocks), spec_(spec), h_(head), s_(scratch), scale_(spec), seen_(head.seen(spec)) {}

  // Queries [i0, i0 + rows): every block of keys is packed once for all their blocks.
  void run(int64_t i0, int64_t rows) {
    const int64_t D = spec_.D, end = visible(i0 + rows);
    for (int64_t i = 0; i < rows; i += kBlock) load_queries(s_.q[i / kBlock], i0 + i, rows - i);
    for (int64_t j0 = first_keys(i0); j0 < end; j0 += kBlock) {
      const int64_t keys = std::min(kBlock, end - j0);
      load_keys(j0, keys);
      const int64_t next = j0 + kBlock, next_keys = std::min(kBlock, end - next);
      prefetch_rows(h_.keys_at(next), h_.kv_stride, next_keys, D);
      prefetch_rows(h_.values_at(next), h_.kv_stride, next_keys, D);
      for (int64_t i = 0; i < rows; i += kBlock) {
        const int64_t n = std::min(kBlock, rows - i), seen = visible(i0 + i + n) - j0;
        if (seen > 0 && j0 >= first_keys(i0 + i))
          tile(s_.q[i / kBlock], i0 + i, n, j0, std::min(keys, seen));
      }
    }
    for (int64_t i = 0; i < rows; i += kBlock)
      store(s_.q[i / kBlock], i0 + i, std::min(kBlock, rows - i));
  }

 private:
  // Keys that the queries before `end` see.
  int64_t visible(int64_t end) const { return seen_.end(end - 1); }
  int64_t first_keys(int64_t i0) const { return seen_.first_block(i0); }

  void load_keys(int64_t j0, int64_t keys) {
    const int64_t D = spec_.D, stride = h_.kv_stride;
    pack_rows(s_.k, s_.row_units, h_.keys_at(j0), stride, keys, D, blocks_.pairs);
    pack_columns(s_.columns, round_up(D, 8), h_.values_at(j0), stride, keys, D, blocks_.pairs);
  }

  void load_queries(const QueryScratch& q, int64_t i0, int64_t left) {
    const int64_t rows = std::min(kBlock, left);
    pack_rows(s_.rows, s_.row_units, h_.q + i0 * h_.q_stride, h_.q_stride, rows, spec_.D,
              blocks_.pairs);
    if (scale_.flip) flip_signs(s_.rows, rows * s_.row_units, blocks_.pairs);
    turn_block(q.turned, s_.rows, s_.row_units, rows, s_.units, round_up(rows, kAttentionLanes),
               kBlock);
    // Finite: a query may see nothing of its first blocks of keys, and inf - inf is no number.
    std::fill_n(q.top, kBlock, std::numeric_limits<float>::lowest());
    std::fill_n(q.sum, kBlock, 0.0f);
  }

  void tile(const QueryScratch& q, int64_t i0, int64_t rows, int64_t j0, int64_t keys) {
    const int64_t lanes = round_up(rows, kAttentionLanes), first = h_.first_pos + i0;
    const int64_t ld = s_.row_units;
    // On the diagonal the first half of the queries sees nothing of the second half of the keys.
    const bool halves = spec_.causal && j0 == first && keys > kHalf;
    const int64_t low = halves ? kHalf : keys;
    blocks_.product(s_.s, kBlock, s_.k, ld, 1, q.turned, kBlock, low, lanes, s_.units, false);
    if (halves)
      blocks_.product(s_.s + low * kBlock + kHalf, kBlock, s_.k + low * ld, ld, 1, q.turned + kHalf,
                      kBlock, keys - low, lanes - kHalf, s_.units, false);
    if (scale_.inner > 0) cap_scores(s_.s, nullptr, keys, lanes, scale_.inner);
    const bool add = j0 > first_keys(i0);
    if (spec_.causal && j0 + keys - 1 > first) hide_future(s_.s, keys, lanes, j0, first);
    hide_earlier_keys(s_.s, keys, rows, j0, seen_, i0);
    if (h_.ends) hide_later_keys(s_.s, keys, rows, j0, seen_, i0);
    if (s_.keep)
      blocks_.dropout_bits(s_.keep, keys, lanes, h_.key, h_.sample, static_cast<uint32_t>(first),
                           static_cast<uint32_t>((h_.head << 20) + j0),
                           dropout_threshold(spec_.dropout));
    const bool changed =
        blocks_.softmax_step(s_.s, keys, lanes, scale_.factor2, q.top, q.sum, s_.factor, s_.keep);
    if (add && changed) blocks_.scale_lanes(q.out, spec_.D, lanes, s_.factor);
    if (halves) add_values(q.out, s_.s, kHalf, kHalf, add);
    const int64_t done = halves ? kHalf : 0;
    add_values(q.out + done, s_.s + done, lanes - done, keys, add);
  }

  // out (D, lanes) = [out +] values * p.
  void add_values(float* out, const float* p, int64_t lanes, int64_t keys, bool add) const {
    blocks_.product(out, kBlock, s_.columns, 1, round_up(spec_.D, 8), p, kBlock, spec_.D, lanes,
                    units_of(keys, blocks_.pairs), add);
  }

  void store(const QueryScratch& q, int64_t i0, int64_t rows) {
    const float kept = dropout_kept(spec_.dropout);
    // Its window begins behind the last key there is: no tile has written the sums.
    if (first_keys(i0) >= h_.keys) std::fill_n(q.out, spec_.D * kBlock, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      const bool blind = q.sum[i] == 0.0f;
      if (h_.lse)
        h_.lse[i0 + i] =
            blind ? 0.0f : static_cast<float>(q.top[i] * ScoreScale::kLn2 + std::log(q.sum[i]));
      s_.factor[i] = blind ? 0.0f : kept / q.sum[i];
    }
    store_turned(h_.out + i0 * h_.out_stride, h_.out_stride, q.out, rows, spec_.D, s_.factor);
  }

  const AttentionBlocks& blocks_;
  const AttentionSpec& spec_;
  const ForwardHead<T>& h_;
  const ForwardScratch& s_;
  ScoreScale scale_;
  SeenKeys seen_;
};

int64_t forward_together(const AttentionSpec& spec, int64_t B, int64_t queries, int threads) {
  return blocks_together(B * spec.H, ceil_div(queries, kBlock), threads, kMostTogether);
}

// All sequences and heads, of up to `keys` keys; the longest pieces of a head first, for an even
// end.
template <class T, class MakeHead>
void forward_all(const AttentionBlocks& blocks, Context& ctx, const AttentionSpec& spec, int64_t B,
                 int64_t queries, int64_t keys, const View& scratch, MakeHead&& make_head) {
  const int64_t together = blocks.fused
                               ? fused_forward_together(spec, B, queries, keys, ctx.threads())
                               : forward_together(spec, B, queries, ctx.threads());
  const int64_t piece = together * kBlock, pieces = ceil_div(queries, piece);
  parallel_slots(ctx.threads(), B * spec.H * pieces, [&](int64_t unit, int slot) {
    const int64_t bh = unit / pieces, i0 = (pieces - 1 - unit % pieces) * piece;
    const ForwardHead<T> head = make_head(bh / spec.H, bh % spec.H);
    float* data = scratch.as<float>() + slot * scratch.shape[1];
    const int64_t rows = std::min(piece, queries - i0);
    if constexpr (std::is_same_v<T, bf16>)
      if (blocks.fused) {
        blocks.enter();
        const int64_t next = bh + ctx.threads();
        const bool more = pieces == 1 && next < B * spec.H;
        const ForwardHead<T> ahead = more ? make_head(next / spec.H, next % spec.H) : head;
        fused_forward_piece(*blocks.fused, spec, head, more ? &ahead : nullptr, data, together,
                            keys, i0, rows);
        return blocks.leave();
      }
    Forward<T>(blocks, spec, head,
               forward_scratch(data, blocks, spec.D, together, spec.dropout > 0))
        .run(i0, rows);
  });
}

template <class T>
void forward_typed(const AttentionBlocks& blocks, Context& ctx, const View& out, const View& lse,
                   const View& qkv, int64_t B, int64_t tokens, const AttentionSpec& spec,
                   const View& state, const View& scratch) {
  const int64_t H = spec.H, G = spec.G, D = spec.D, stride = (H + 2 * G) * D;
  const StepState* step = spec.dropout > 0 ? step_state(state) : nullptr;
  const RandomKey key =
      step ? random_key(step->seed, static_cast<uint64_t>(step->step), spec.site) : RandomKey{};
  forward_all<T>(blocks, ctx, spec, B, tokens, tokens, scratch, [&](int64_t b, int64_t h) {
    const T* row = qkv.as<T>() + b * tokens * stride;
    ForwardHead<T> f{};
    f.q = row + h * D;
    f.k = row + (H + h / (H / G)) * D;
    f.v = f.k + G * D;
    f.q_stride = f.kv_stride = stride;
    f.queries = tokens;
    f.keys = attention_keys(spec, b, tokens);
    f.starts = attention_starts(spec, b, tokens);
    f.ends = attention_ends(spec, b, tokens);
    f.out = out.as<T>() + b * tokens * H * D + h * D;
    f.out_stride = H * D;
    f.lse = lse.as<float>() + (b * H + h) * tokens;
    f.key = key;
    f.sample = static_cast<uint64_t>((step ? step->first_sample : 0) + b);
    f.head = h;
    return f;
  });
}

// Keys that queries over a cache of P rows meet at most: those of a window may begin within a block.
int64_t most_keys(int64_t P, int64_t ring) {
  return ring > 0 ? P + kBlock : P;
}

template <class T>
void cached_typed(const AttentionBlocks& blocks, Context& ctx, const View& out, const View& cache_k,
                  const View& cache_v, const View& qkv, int64_t B, int64_t Tq,
                  const AttentionSpec& spec, int64_t position, int64_t ring, const View& scratch) {
  const int64_t H = spec.H, G = spec.G, D = spec.D, P = cache_k.shape[1], stride = (H + 2 * G) * D;
  parallel_for(ctx.threads(), B * Tq, [&](int64_t row) {
    const T* from = qkv.as<T>() + row * stride + H * D;
    const int64_t at = position + row % Tq;
    const int64_t to = ((row / Tq) * P + (ring > 0 ? at % ring : at)) * G * D;
    std::copy_n(from, G * D, cache_k.as<T>() + to);
    std::copy_n(from + G * D, G * D, cache_v.as<T>() + to);
  });
  forward_all<T>(blocks, ctx, spec, B, Tq, most_keys(P, ring), scratch, [&](int64_t b, int64_t h) {
    ForwardHead<T> f{};
    f.q = qkv.as<T>() + b * Tq * stride + h * D;
    f.k = cache_k.as<T>() + (b * P * G + h / (H / G)) * D;
    f.v = cache_v.as<T>() + (b * P * G + h / (H / G)) * D;
    f.q_stride = stride;
    f.kv_stride = G * D;
    f.ring = ring;
    f.queries = Tq;
    f.keys = position + Tq;
    f.first_pos = position;
    f.out = out.as<T>() + b * Tq * H * D + h * D;
    f.out_stride = H * D;
    f.head = h;
    return f;
  });
}

Tensor make_forward_scratch(const AttentionBlocks& blocks, Context& ctx, const AttentionSpec& spec,
                            int64_t B, int64_t queries, int64_t keys) {
  static const Name kName("attention_scratch");
  const int64_t floats = most_of_windows(spec, B, queries, [&](int64_t b, int64_t t) {
    return blocks.fused
               ? fused_forward_floats(spec, b, t, t < queries ? t : keys, ctx.threads())
               : forward_scratch(nullptr, blocks, spec.D,
                                 forward_together(spec, b, t, ctx.threads()), spec.dropout > 0)
                     .floats;
  });
  return ctx.tensor(kName, {ctx.threads(), floats}, DType::f32, Category::workspace);
}

}  // namespace

void attention_check(const AttentionSpec& s, int64_t B, int64_t T, const View& state) {
  if (s.H < 1 || s.G < 1 || s.D < 1 || B < 1 || T < 1 || s.H % s.G != 0)
    fail(ErrorCode::shape, "positive sizes and H query heads a multiple of G key/value heads",
         fmt::format("B={} T={} H={} G={} D={}", B, T, s.H, s.G, s.D),
         "check the numbers of heads in the model's config");
  if (s.D > 256)
    fail(ErrorCode::unsupported, "a head width of at most D=256", fmt::format("D={}", s.D),
         "use more heads of a smaller width");
  if (!std::isfinite(s.scale))
    fail(ErrorCode::usage, "a finite attention scale", fmt::format("scale={}", s.scale),
         "use 1/sqrt(D)");
  if (s.window < 0)
    fail(ErrorCode::usage, "an attention window of at least one key, or 0 for no limit",
         fmt::format("window={}", s.window), "count the query itself");
  if (s.window > 0 && !s.causal)
    fail(ErrorCode::unsupported, "causal attention with a window",
         fmt::format("window={} causal=false", s.window), "use window=0");
  if (!(s.softcap >= 0) || !std::isfinite(s.softcap))
    fail(ErrorCode::usage, "an attention softcap above 0, or 0 for none",
         fmt::format("softcap={}", s.softcap), "use the value of the model's config");
  if (s.softcap > 0 && !s.causal)
    fail(ErrorCode::unsupported, "causal attention with a softcap",
         fmt::format("softcap={} causal=false", s.softcap), "use softcap=0");
  if (s.document_start.defined()) {
    if (s.key_lengths.defined())
      fail(ErrorCode::unsupported, "attention without key lengths to keep documents apart",
           "document_start with key_lengths", "let padding be a document of its own");
    expect_document_start(s.document_start, B, T);
  }
  const bool ends = s.document_start.defined() && !s.causal;
  if (s.document_end.defined() != ends)
    fail(ErrorCode::usage,
         fmt::format("{} document_end for causal={} document_start={}", ends ? "a" : "no", s.causal,
                     s.document_start.defined()),
         fmt::format("document_end={}", s.document_end.defined()),
         ends ? "make it of document_start, with document_end()" : "leave it undefined");
  if (ends) expect_document_end(s.document_end, B, T);
  if (!(s.dropout >= 0 && s.dropout < 1))
    fail(ErrorCode::usage, "an attention dropout in [0,1)", fmt::format("dropout={}", s.dropout),
         "use 0.1, or 0 to turn it off");
  if (s.dropout > 0 && (T >= int64_t{1} << 20 || s.H > 4096))
    fail(ErrorCode::unsupported, "T below 2^20 and at most H=4096 heads with attention dropout",
         fmt::format("T={} H={}", T, s.H), "turn attention dropout off");
  if (s.dropout > 0) expect(state, "state", {{"bytes", step_state_shape()[0]}});
  if (s.key_lengths.defined()) {
    expect(s.key_lengths, "key_lengths", {{"B", B}});
    expect_dtype(s.key_lengths, "key_lengths", {DType::i32});
  }
}

void attention_check_values(const AttentionSpec& spec, int64_t B, int64_t T) {
  if (spec.document_start.defined()) check_document_start(spec.document_start, B, T);
  if (spec.document_end.defined()) check_document_end(spec.document_end, spec.document_start, B, T);
  if (!spec.key_lengths.defined()) return;
  for (int64_t b = 0; b < B; ++b)
    if (const int32_t n = spec.key_lengths.as<int32_t>()[b]; n < 1 || n > T)
      fail(ErrorCode::data, fmt::format("key lengths in [1,{}]", T),
           fmt::format("{} for sequence {}", n, b), "give every sequence at least one token");
}

Name attention_variant(const Context& ctx, const AttentionBlocks& blocks, bool cudnn) {
  if (!ctx.planning()) return Name();
  if (cudnn) return Name("attention cudnn");
  if (ctx.by_kernels())
    return Name(ctx.target() == Place::cuda ? "attention cuda" : "attention emulated");
  return Name(blocks.pairs ? std::string("attention bf16 bf16 ") + blocks.name
                           : std::string("attention f32 f32"));
}

void attention_check_dtype(const View& x) {
  if (x.dtype != DType::f32 && x.dtype != DType::bf16 && x.dtype != DType::f16)
    fail(ErrorCode::unsupported, "attention over f32, bf16 or f16", describe(x),
         "use precision: fp32, bf16 or fp16");
}

void attention_forward_by(const AttentionBlocks& asked, Context& ctx, const View& out,
                          const View& lse, const View& qkv, int64_t B, int64_t T,
                          const AttentionSpec& spec, const View& state) {
  attention_check(spec, B, T, state);
  const AttentionBlocks& blocks = blocks_for(asked, spec);
  const int64_t H = spec.H, D = spec.D;
  expect(qkv, "qkv", {{"B*T", B * T}, {"(H+2G)*D", (H + 2 * spec.G) * D}});
  expect(out, "out", {{"B*T", B * T}, {"H*D", H * D}});
  expect(lse, "lse", {{"B", B}, {"H", H}, {"T", T}});
  expect_dtype(lse, "lse", {DType::f32});
  attention_check_dtype(qkv);
  expect_dtype(out, "out", {qkv.dtype});
  const Tensor scratch = ctx.by_kernels() ? attention_cudnn_workspace(ctx, qkv, B, T, spec, false)
                                          : make_forward_scratch(blocks, ctx, spec, B, T, T);
  Op op(ctx, spec.dropout > 0 ? "attention_dropout_forward" : "attention_forward",
        {.flops = 4 * B * H * D * attention_pairs(T, spec),
         .bytes = qkv.bytes() + out.bytes() + lse.bytes(),
         .variant = attention_variant(ctx, blocks, ctx.by_kernels() && scratch.defined())});
  if (!op.run()) return;
  if (ctx.host_reads()) attention_check_values(spec, B, T);
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      if constexpr (std::is_same_v<std::decay_t<decltype(queue)>, simt::cuda::Queue>)
        if (scratch.defined())
          return attention_cudnn_forward(queue, out, lse, qkv, B, T, spec, scratch);
      attention_forward_on(queue, out, lse, qkv, B, T, spec, state);
    });
  dispatch_float(qkv, "qkv", [&](auto value) {
    forward_typed<decltype(value)>(blocks, ctx, out, lse, qkv, B, T, spec, state, scratch);
  });
}

void attention_forward(Context& ctx, const View& out, const View& lse, const View& qkv, int64_t B,
                       int64_t T, const AttentionSpec& spec, const View& state) {
  attention_forward_by(attention_blocks(qkv.dtype), ctx, out, lse, qkv, B, T, spec, state);
}

void attention_cached_forward_by(const AttentionBlocks& asked, Context& ctx, const View& out,
                                 const View& cache_k, const View& cache_v, const View& qkv,
                                 int64_t B, int64_t Tq, const AttentionSpec& spec,
                                 const View& state) {
  attention_check(spec, B, Tq, state);
  const AttentionBlocks& blocks = blocks_for(asked, spec);
  if (!spec.causal || spec.dropout > 0 || spec.key_lengths.defined() ||
      spec.document_start.defined())
    fail(ErrorCode::unsupported,
         "causal attention over the cache, without dropout, key lengths or documents",
         fmt::format("causal={} dropout={} key_lengths={} document_start={}", spec.causal,
                     spec.dropout, spec.key_lengths.defined(), spec.document_start.defined()),
         "generate in evaluation mode with a causal model");
  const int64_t H = spec.H, G = spec.G, D = spec.D;
  const int64_t P = cache_k.shape.rank() > 1 ? cache_k.shape[1] : 0;
  if (P < 1)
    fail(ErrorCode::shape, "cache_k of shape (B,P,G,D) with P above 0", describe(cache_k),
         "plan a cache for at least one token");
  expect(qkv, "qkv", {{"B*Tq", B * Tq}, {"(H+2G)*D", (H + 2 * G) * D}});
  expect(out, "out", {{"B*Tq", B * Tq}, {"H*D", H * D}});
  expect(cache_k, "cache_k", {{"B", B}, {"P", P}, {"G", G}, {"D", D}});
  expect(cache_v, "cache_v", {{"B", B}, {"P", P}, {"G", G}, {"D", D}});
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  attention_check_dtype(qkv);
  expect_dtype(out, "out", {qkv.dtype});
  expect_dtype(cache_k, "cache_k", {qkv.dtype});
  expect_dtype(cache_v, "cache_v", {qkv.dtype});
  const int64_t ring = cache_ring(spec, P, Tq);
  const Tensor scratch = ctx.by_kernels()
                             ? Tensor()
                             : make_forward_scratch(blocks, ctx, spec, B, Tq, most_keys(P, ring));
  const int64_t read = spec.window > 0 ? std::min(P, spec.window + Tq - 1) : P;  // positions
  Op op(ctx, "attention_cached_forward",
        {.flops = 4 * B * H * D * Tq * (spec.window > 0 ? std::min(P, spec.window) : P),
         .bytes = qkv.bytes() + out.bytes() + (cache_k.bytes() + cache_v.bytes()) / P * read,
         .variant = attention_variant(ctx, blocks, false)});
  if (!op.run()) return;
  // On a GPU whoever generates has seen to it; the kernels stay inside.
  const int64_t position = ctx.host_reads() ? step_state(state)->position : 0;
  if (position < 0 || (ring == 0 && position + Tq > P))
    fail(ErrorCode::usage, fmt::format("at most P={} tokens in the key/value cache", P),
         fmt::format("{} new tokens at position {}", Tq, position),
         "generate fewer tokens or plan a longer cache");
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) {
      attention_cached_forward_on(queue, out, cache_k, cache_v, qkv, B, Tq, spec, state);
    });
  dispatch_float(qkv, "qkv", [&](auto value) {
    cached_typed<decltype(value)>(blocks, ctx, out, cache_k, cache_v, qkv, B, Tq, spec, position,
                                  ring, scratch);
  });
}

void attention_cached_forward(Context& ctx, const View& out, const View& cache_k,
                              const View& cache_v, const View& qkv, int64_t B, int64_t Tq,
                              const AttentionSpec& spec, const View& state) {
  attention_cached_forward_by(attention_blocks(qkv.dtype), ctx, out, cache_k, cache_v, qkv, B, Tq,
                              spec, state);
}

}  // namespace snug
