#include "layers/ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/core/rng.h"
#include "engine/core/units.h"
#include "engine/memory/step_state.h"
#include "layers/ops/attention_parts.h"

namespace snug {
namespace {

constexpr int64_t kBlock = kAttentionBlock;

// Where the keys and values of one sequence and head are, and how the queries lie among them.
template <class T>
struct ForwardHead {
  const T *q, *k, *v;
  int64_t q_stride, kv_stride;
  int64_t queries;    // how many
  int64_t keys;       // how many exist
  int64_t first_pos;  // position of query 0
  T* out;
  int64_t out_stride;
  float* lse;  // may be null
  RandomKey key;
  uint64_t sample;
  int64_t head;
};

struct ForwardScratch {
  float *q, *q_turned, *k, *v, *s, *mask, *out, *top, *sum, *factor;
  int64_t floats;
};

ForwardScratch forward_scratch(float* data, int64_t D, bool dropout) {
  ScratchPieces p(data);
  ForwardScratch s{};
  s.q = p.take(kBlock * D);
  s.q_turned = p.take(kBlock * D);
  s.k = p.take(kBlock * D);
  s.v = p.take(kBlock * D);
  s.out = p.take(kBlock * D);
  s.s = p.take(kBlock * kBlock);
  s.mask = dropout ? p.take(kBlock * kBlock) : nullptr;
  s.top = p.take(kBlock);
  s.sum = p.take(kBlock);
  s.factor = p.take(kBlock);
  s.floats = p.used();
  return s;
}

// Queries [i0, i0 + rows) of one head.
template <class T>
void forward_queries(const AttentionBlocks& blocks, const AttentionSpec& spec,
                     const ForwardHead<T>& h, const ForwardScratch& s, int64_t i0, int64_t rows) {
  const int64_t D = spec.D, lanes = round_up(rows, kAttentionLanes), first = h.first_pos + i0;
  load_block(s.q, D, h.q + i0 * h.q_stride, h.q_stride, rows, D, spec.scale);
  turn_block(s.q_turned, s.q, D, rows, D);
  for (int64_t i = 0; i < lanes; ++i) {
    s.top[i] = -__builtin_inff();
    s.sum[i] = 0;
  }
  const int64_t end = spec.causal ? std::min(h.keys, first + rows) : h.keys;
  for (int64_t j0 = 0; j0 < end; j0 += kBlock) {
    const int64_t keys = std::min(kBlock, end - j0);
    load_block(s.k, D, h.k + j0 * h.kv_stride, h.kv_stride, keys, D, 1.0f);
    load_block(s.v, D, h.v + j0 * h.kv_stride, h.kv_stride, keys, D, 1.0f);
    const int64_t next = j0 + kBlock, next_keys = std::min(kBlock, end - next);
    prefetch_rows(h.k + next * h.kv_stride, h.kv_stride, next_keys, D);
    prefetch_rows(h.v + next * h.kv_stride, h.kv_stride, next_keys, D);
    blocks.product(s.s, kBlock, s.k, D, 1, s.q_turned, kBlock, keys, lanes, D, false);
    if (spec.causal && j0 + keys - 1 > first) hide_future(s.s, keys, lanes, j0, first);
    const bool changed = blocks.softmax_step(s.s, keys, lanes, s.top, s.sum, s.factor);
    if (spec.dropout > 0) {
      blocks.dropout_mask(s.mask, keys, lanes, h.key, h.sample, static_cast<uint32_t>(first),
                          static_cast<uint32_t>((h.head << 18) + j0 / 4), spec.dropout,
                          1.0f / (1.0f - spec.dropout));
      blocks.apply_mask(s.s, s.mask, keys, lanes);
    }
    if (j0 > 0 && changed) blocks.scale_lanes(s.out, D, lanes, s.factor);
    blocks.product(s.out, kBlock, s.v, 1, D, s.s, kBlock, D, lanes, keys, j0 > 0);
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (h.lse) h.lse[i0 + i] = s.top[i] + std::log(s.sum[i]);
    s.factor[i] = 1.0f / s.sum[i];
  }
  store_turned(h.out + i0 * h.out_stride, h.out_stride, s.out, rows, D, s.factor);
}

// All sequences and heads; the longest blocks of queries first, for an even end.
template <class T, class MakeHead>
void forward_all(Context& ctx, const AttentionSpec& spec, int64_t B, int64_t queries,
                 const View& scratch, MakeHead&& make_head) {
  const AttentionBlocks& blocks = attention_blocks();
  const int64_t pieces = ceil_div(queries, kBlock), heads = B * spec.H;
  const int64_t floats = scratch.shape[1];
  parallel_slots(ctx.threads(), heads * pieces, [&](int64_t unit, int slot) {
    const int64_t bh = unit / pieces, i0 = (pieces - 1 - unit % pieces) * kBlock;
    const ForwardHead<T> head = make_head(bh / spec.H, bh % spec.H);
    forward_queries(blocks, spec, head,
                    forward_scratch(scratch.as<float>() + slot * floats, spec.D, spec.dropout > 0),
                    i0, std::min(kBlock, queries - i0));
  });
}

template <class T>
void forward_typed(Context& ctx, const View& out, const View& lse, const View& qkv, int64_t B,
                   int64_t tokens, const AttentionSpec& spec, const View& state,
                   const View& scratch) {
  const int64_t H = spec.H, G = spec.G, D = spec.D, stride = (H + 2 * G) * D;
  const StepState* step = spec.dropout > 0 ? step_state(state) : nullptr;
  const RandomKey key =
      step ? random_key(step->seed, static_cast<uint64_t>(step->step), spec.site) : RandomKey{};
  forward_all<T>(ctx, spec, B, tokens, scratch, [&](int64_t b, int64_t h) {
    const T* row = qkv.as<T>() + b * tokens * stride;
    ForwardHead<T> f{};
    f.q = row + h * D;
    f.k = row + (H + h / (H / G)) * D;
    f.v = f.k + G * D;
    f.q_stride = f.kv_stride = stride;
    f.queries = tokens;
    f.keys = attention_keys(spec, b, tokens);
    f.out = out.as<T>() + b * tokens * H * D + h * D;
    f.out_stride = H * D;
    f.lse = lse.as<float>() + (b * H + h) * tokens;
    f.key = key;
    f.sample = static_cast<uint64_t>((step ? step->first_sample : 0) + b);
    f.head = h;
    return f;
  });
}

template <class T>
void cached_typed(Context& ctx, const View& out, const View& cache_k, const View& cache_v,
                  const View& qkv, int64_t B, int64_t Tq, const AttentionSpec& spec,
                  int64_t position, const View& scratch) {
  const int64_t H = spec.H, G = spec.G, D = spec.D, P = cache_k.shape[1], stride = (H + 2 * G) * D;
  parallel_for(ctx.threads(), B * Tq, [&](int64_t row) {
    const T* from = qkv.as<T>() + row * stride + H * D;
    const int64_t to = ((row / Tq) * P + position + row % Tq) * G * D;
    std::copy_n(from, G * D, cache_k.as<T>() + to);
    std::copy_n(from + G * D, G * D, cache_v.as<T>() + to);
  });
  forward_all<T>(ctx, spec, B, Tq, scratch, [&](int64_t b, int64_t h) {
    ForwardHead<T> f{};
    f.q = qkv.as<T>() + b * Tq * stride + h * D;
    f.k = cache_k.as<T>() + (b * P * G + h / (H / G)) * D;
    f.v = cache_v.as<T>() + (b * P * G + h / (H / G)) * D;
    f.q_stride = stride;
    f.kv_stride = G * D;
    f.queries = Tq;
    f.keys = position + Tq;
    f.first_pos = position;
    f.out = out.as<T>() + b * Tq * H * D + h * D;
    f.out_stride = H * D;
    f.head = h;
    return f;
  });
}

Tensor make_forward_scratch(Context& ctx, const AttentionSpec& spec) {
  static const Name kName("attention_scratch");
  const int64_t floats = forward_scratch(nullptr, spec.D, spec.dropout > 0).floats;
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
  if (s.window != 0)
    fail(ErrorCode::unsupported, "attention without a window",
         fmt::format("a window of {} keys", s.window), "use a model without sliding windows");
  if (s.softcap != 0)
    fail(ErrorCode::unsupported, "attention without soft-capped scores",
         fmt::format("softcap={}", s.softcap), "use a model without attention soft-capping");
  if (s.cu_seqlens.defined())
    fail(ErrorCode::unsupported, "sequences of equal length, one per row of the batch",
         "packed sequences (cu_seqlens)", "turn packing off");
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

void attention_check_key_lengths(const AttentionSpec& spec, int64_t B, int64_t T) {
  if (!spec.key_lengths.defined()) return;
  for (int64_t b = 0; b < B; ++b)
    if (const int32_t n = spec.key_lengths.as<int32_t>()[b]; n < 1 || n > T)
      fail(ErrorCode::data, fmt::format("key lengths in [1,{}]", T),
           fmt::format("{} for sequence {}", n, b), "give every sequence at least one token");
}

void attention_wrong_dtype(const View& x) {
  fail(ErrorCode::unsupported, "attention over f32 or bf16", describe(x),
       "use precision: fp32 or bf16");
}

void attention_forward(Context& ctx, const View& out, const View& lse, const View& qkv, int64_t B,
                       int64_t T, const AttentionSpec& spec, const View& state) {
  attention_check(spec, B, T, state);
  const int64_t H = spec.H, D = spec.D;
  expect(qkv, "qkv", {{"B*T", B * T}, {"(H+2G)*D", (H + 2 * spec.G) * D}});
  expect(out, "out", {{"B*T", B * T}, {"H*D", H * D}});
  expect(lse, "lse", {{"B", B}, {"H", H}, {"T", T}});
  expect_dtype(lse, "lse", {DType::f32});
  if (qkv.dtype != DType::f32 && qkv.dtype != DType::bf16) attention_wrong_dtype(qkv);
  expect_dtype(out, "out", {qkv.dtype});
  const Tensor scratch = make_forward_scratch(ctx, spec);
  Op op(ctx, "attention_forward",
        {.flops = 4 * B * H * D * attention_pairs(T, spec.causal),
         .bytes = qkv.bytes() + out.bytes() + lse.bytes()});
  if (!op.run()) return;
  attention_check_key_lengths(spec, B, T);
  if (qkv.dtype == DType::f32)
    forward_typed<float>(ctx, out, lse, qkv, B, T, spec, state, scratch);
  else if (qkv.dtype == DType::bf16)
    forward_typed<bf16>(ctx, out, lse, qkv, B, T, spec, state, scratch);
  else
    attention_wrong_dtype(qkv);
}

void attention_cached_forward(Context& ctx, const View& out, const View& cache_k,
                              const View& cache_v, const View& qkv, int64_t B, int64_t Tq,
                              const AttentionSpec& spec, const View& state) {
  attention_check(spec, B, Tq, state);
  if (!spec.causal || spec.dropout > 0 || spec.key_lengths.defined())
    fail(ErrorCode::unsupported, "causal attention over the cache, without dropout or key lengths",
         fmt::format("causal={} dropout={} key_lengths={}", spec.causal, spec.dropout,
                     spec.key_lengths.defined()),
         "generate in evaluation mode with a causal model");
  const int64_t H = spec.H, G = spec.G, D = spec.D;
  const int64_t P = cache_k.shape.rank() > 1 ? cache_k.shape[1] : 0;
  expect(qkv, "qkv", {{"B*Tq", B * Tq}, {"(H+2G)*D", (H + 2 * G) * D}});
  expect(out, "out", {{"B*Tq", B * Tq}, {"H*D", H * D}});
  expect(cache_k, "cache_k", {{"B", B}, {"P", P}, {"G", G}, {"D", D}});
  expect(cache_v, "cache_v", {{"B", B}, {"P", P}, {"G", G}, {"D", D}});
  expect(state, "state", {{"bytes", step_state_shape()[0]}});
  if (qkv.dtype != DType::f32 && qkv.dtype != DType::bf16) attention_wrong_dtype(qkv);
  expect_dtype(out, "out", {qkv.dtype});
  expect_dtype(cache_k, "cache_k", {qkv.dtype});
  expect_dtype(cache_v, "cache_v", {qkv.dtype});
  const Tensor scratch = make_forward_scratch(ctx, spec);
  Op op(ctx, "attention_cached_forward",
        {.flops = 4 * B * H * D * Tq * P,
         .bytes = qkv.bytes() + out.bytes() + cache_k.bytes() + cache_v.bytes()});
  if (!op.run()) return;
  const int64_t position = step_state(state)->position;
  if (position < 0 || position + Tq > P)
    fail(ErrorCode::usage, fmt::format("at most P={} tokens in the key/value cache", P),
         fmt::format("{} new tokens at position {}", Tq, position),
         "generate fewer tokens or plan a longer cache");
  if (qkv.dtype == DType::f32)
    cached_typed<float>(ctx, out, cache_k, cache_v, qkv, B, Tq, spec, position, scratch);
  else if (qkv.dtype == DType::bf16)
    cached_typed<bf16>(ctx, out, cache_k, cache_v, qkv, B, Tq, spec, position, scratch);
  else
    attention_wrong_dtype(qkv);
}

}  // namespace snug
