// Tiles of attention in shared memory: what the forward and backward kernels share. A tile has rows
// of D floats, padded with zeros to `padded`, at a stride whose quarter is odd, so that eight
// threads reading 16 bytes of eight rows meet in no bank.
#pragma once

#include "engine/core/units.h"
#include "engine/simt/map.h"
#include "layers/ops/attention.h"
#include "layers/ops/dropout_device.h"

namespace snug {

inline constexpr int kMicro = 4;  // a thread takes 4 x 4 values at a time

// Queries and keys of the tiles of the f32 kernels.
template <int kQueriesOfTile, int kKeysOfTile>
struct TileSize {
  static constexpr int kQueries = kQueriesOfTile, kKeys = kKeysOfTile;
  static constexpr int kMicroRows = kQueries / kMicro;  // a thread's rows are this far apart
  static constexpr int kMicroKeys = kKeys / kMicro;     // threads that share a row of scores
  static constexpr int kMicros = kMicroRows * kMicroKeys;
  static constexpr int kRow = kKeys + kMicro;  // of scores in shared memory
};

// f(size for forward and dq, size for dk and dv): what fits the shared memory of every device, so
// less for wide heads. dk and dv keep four tiles of keys, the others two.
template <class F>
void with_tiles(int64_t D, F&& f) {
  if (D > 128)
    f(TileSize<16, 16>{}, TileSize<16, 8>{});
  else if (D > 112)
    f(TileSize<32, 32>{}, TileSize<32, 16>{});
  else
    f(TileSize<32, 32>{}, TileSize<32, 32>{});
}

// What every kernel of attention is told; plain values.
struct AttentionProblem {
  AttentionProblem(int64_t T, const AttentionSpec& s, const View& step)
      : tokens(T),
        qkv_row((s.H + 2 * s.G) * s.D),
        heads(s.H),
        groups(s.G),
        width(static_cast<int>(s.D)),
        padded(static_cast<int>(round_up(s.D, kMicro))),
        stride(padded / kMicro % 2 == 1 ? padded : padded + kMicro),
        scale(s.scale),
        softcap(s.softcap),
        causal(s.causal),
        window(s.window),
        key_lengths(s.key_lengths.defined() ? s.key_lengths.as<const int32_t>() : nullptr),
        starts(s.document_start.defined() ? s.document_start.as<const int32_t>() : nullptr),
        ends(s.document_end.defined() ? s.document_end.as<const int32_t>() : nullptr),
        state(s.dropout > 0 ? step_state(step) : nullptr),
        mask(DropoutSpec{s.dropout, s.site}) {}

  int64_t tokens, qkv_row, heads, groups;
  int width, padded, stride;
  float scale;
  float softcap;  // 0: none
  bool causal;
  int64_t window;     // 0: no limit
  int64_t ring = 0;   // rows of the cache in which keys lie by position mod ring; 0: by position
  bool wide = false;  // rows can be read in vectors of 16 bytes
  const int32_t* key_lengths;
  const int32_t* starts;   // of documents; null: there is one
  const int32_t* ends;     // of documents that are not causal; null: there are none
  const StepState* state;  // null without dropout
  MaskConstants mask;
};

inline namespace SIMT_SIDE {

// A score behind the softcap, and the slope of it.
struct Capped {
  float value, slope;
};
__device__ inline Capped capped(float score, float softcap) {
  const float t = simt::tanh(score / softcap);
  return {softcap * t, 1.0f - t * t};
}

using simt::Pack;
using simt::Shared;
using Four = simt::Pack<float, kMicro>;

// to[r][c] = from[r row_stride + c] for r < valid and c < width, else 0, for `rows` rows.
__device__ inline void load_rows(const Shared<float>& to, const float* from, int64_t row_stride,
                                 int valid, int rows, const AttentionProblem& p) {
  if (p.wide) {
    const int pieces = p.padded / kMicro;
    for (int i = simt::thread(); i < rows * pieces; i += simt::threads()) {
      const int r = i / pieces, c = i % pieces * kMicro;
      Four out{};
      if (r < valid) out = Four::load(from + r * row_stride + c);
      out.store(to, r * p.stride + c);
    }
    return;
  }
  for (int i = simt::thread(); i < rows * p.padded; i += simt::threads()) {
    const int r = i / p.padded, c = i % p.padded;
    to[r * p.stride + c] = r < valid && c < p.width ? from[r * row_stride + c] : 0.0f;
  }
}

__device__ inline void zero_rows(const Shared<float>& to, int rows, const AttentionProblem& p) {
  for (int i = simt::thread(); i < rows * p.stride / kMicro; i += simt::threads())
    Four{}.store(to, i * kMicro);
}

// to[r row_stride + c] = from[r][c] factor(r) for r < valid.
template <class F>
__device__ inline void store_rows(float* to, int64_t row_stride, const Shared<float>& from,
                                  int valid, const AttentionProblem& p, F&& factor) {
  if (p.wide) {
    const int pieces = p.width / kMicro;
    for (int i = simt::thread(); i < valid * pieces; i += simt::threads()) {
      const int r = i / pieces, c = i % pieces * kMicro;
      Four out = Four::load(from, r * p.stride + c);
      const float f = factor(r);
      for (int k = 0; k < kMicro; ++k) out[k] *= f;
      out.store(to + r * row_stride + c);
    }
    return;
  }
  for (int i = simt::thread(); i < valid * p.width; i += simt::threads()) {
    const int r = i / p.width, c = i % p.width;
    to[r * row_stride + c] = from[r * p.stride + c] * factor(r);
  }
}

// s[i][j] = the product of rows y + kMicroRows i of `a` and x + kMicroKeys j of `b`.
template <class Size>
__device__ inline void dots(float (&s)[kMicro][kMicro], const Shared<float>& a,
                            const Shared<float>& b, int y, int x, const AttentionProblem& p) {
  for (int i = 0; i < kMicro; ++i)
    for (int j = 0; j < kMicro; ++j) s[i][j] = 0.0f;
  for (int d = 0; d < p.padded; d += kMicro) {
    Four q[kMicro], k[kMicro];
    for (int i = 0; i < kMicro; ++i) {
      q[i] = Four::load(a, (y + Size::kMicroRows * i) * p.stride + d);
      k[i] = Four::load(b, (x + Size::kMicroKeys * i) * p.stride + d);
    }
    for (int i = 0; i < kMicro; ++i)
      for (int j = 0; j < kMicro; ++j)
        for (int t = 0; t < kMicro; ++t) s[i][j] = simt::fma(q[i][t], k[j][t], s[i][j]);
  }
}

// out[r][c] = out[r][c] scale(r) + sum over the keys of w[r][k] x[k][c], for all queries r.
template <class Size, class F>
__device__ inline void add_products(const Shared<float>& out, const Shared<float>& w,
                                    const Shared<float>& x, const AttentionProblem& p, F&& scale) {
  constexpr int kMicroRows = Size::kMicroRows;
  const int columns = p.padded / kMicro;
  for (int m = simt::thread(); m < kMicroRows * columns; m += simt::threads()) {
    const int c = m % columns * kMicro, y = m / columns;
    Four sum[kMicro];
    for (int i = 0; i < kMicro; ++i) {
      const int r = y + kMicroRows * i;
      sum[i] = Four::load(out, r * p.stride + c);
      const float f = scale(r);
      for (int j = 0; j < kMicro; ++j) sum[i][j] *= f;
    }
    for (int k = 0; k < Size::kKeys; k += kMicro) {
      Four weight[kMicro];
      for (int i = 0; i < kMicro; ++i)
        weight[i] = Four::load(w, (y + kMicroRows * i) * Size::kRow + k);
      for (int t = 0; t < kMicro; ++t) {
        const auto value = Four::load(x, (k + t) * p.stride + c);
        for (int i = 0; i < kMicro; ++i)
          for (int j = 0; j < kMicro; ++j) sum[i][j] = simt::fma(weight[i][t], value[j], sum[i][j]);
      }
    }
    for (int i = 0; i < kMicro; ++i) sum[i].store(out, (y + kMicroRows * i) * p.stride + c);
  }
}

// out[k][c] += sum over the queries r of w[r][k] x[r][c], for all keys k.
template <class Size>
__device__ inline void add_transposed_products(const Shared<float>& out, const Shared<float>& w,
                                               const Shared<float>& x, const AttentionProblem& p) {
  const int columns = p.padded / kMicro;
  for (int m = simt::thread(); m < Size::kMicroKeys * columns; m += simt::threads()) {
    const int c = m % columns * kMicro, key = m / columns * kMicro;
    Four sum[kMicro];
    for (int i = 0; i < kMicro; ++i) sum[i] = Four::load(out, (key + i) * p.stride + c);
    for (int r = 0; r < Size::kQueries; ++r) {
      const auto weight = Four::load(w, r * Size::kRow + key),
                 value = Four::load(x, r * p.stride + c);
      for (int i = 0; i < kMicro; ++i)
        for (int j = 0; j < kMicro; ++j) sum[i][j] = simt::fma(weight[i], value[j], sum[i][j]);
    }
    for (int i = 0; i < kMicro; ++i) sum[i].store(out, (key + i) * p.stride + c);
  }
}

// One sequence and query head, a tile of queries from q0 on, a tile of keys from k0 on.
struct TilePlace {
  int64_t b, h, q0, k0;
  int queries;   // of the tile that exist
  int64_t keys;  // of the sequence
};

__device__ inline bool sees(const TilePlace& at, int r, int key, const AttentionProblem& p) {
  const int64_t i = at.q0 + r, j = at.k0 + key;
  return r < at.queries && j < at.keys && (!p.causal || j <= i) &&
         (p.window == 0 || j > i - p.window) && (!p.starts || j >= p.starts[at.b * p.tokens + i]) &&
         (!p.ends || j < p.ends[at.b * p.tokens + i]);
}

// keep[r][k / 4]: the kept ones of four keys. The channels of a head begin at h 2^20.
template <class Size>
__device__ inline void load_mask(const Shared<uint32_t>& keep, const MaskKey& key,
                                 const TilePlace& at, const AttentionProblem& p) {
  constexpr int groups = Size::kKeys / 8;
  static_assert(Size::kKeys % 8 == 0);
  for (int i = simt::thread(); i < Size::kQueries * groups; i += simt::threads()) {
    const uint32_t bits =
        keep_eight(key, at.b, at.q0 + i / groups,
                   at.h * (int64_t{1} << 17) + at.k0 / 8 + i % groups, p.mask.threshold);
    keep[2 * i] = bits & 15u;
    keep[2 * i + 1] = bits >> 4;
  }
}

__device__ inline int64_t keys_of(const AttentionProblem& p, int64_t b) {
  return p.key_lengths ? p.key_lengths[b] : p.tokens;
}

// Of G that query head h reads.
__device__ inline int64_t key_head(const AttentionProblem& p, int64_t h) {
  return h / (p.heads / p.groups);
}

// The first key that any query from q0 on sees, and the end of those that queries up to i see.
// Where the tile of keys from k0 on lies.
__device__ inline int64_t row_of_keys(const AttentionProblem& p, int64_t k0) {
  return p.ring > 0 ? k0 % p.ring : k0;
}
__device__ inline int64_t first_key(const AttentionProblem& p, int64_t b, int64_t q0) {
  const int64_t document = p.starts ? p.starts[b * p.tokens + q0] : 0, far = q0 - p.window + 1;
  return p.window > 0 && far > document ? far : document;
}
__device__ inline int64_t end_of_keys(const AttentionProblem& p, const TilePlace& at, int64_t i) {
  if (p.ends) return p.ends[at.b * p.tokens + i];
  return p.causal && i + 1 < at.keys ? i + 1 : at.keys;
}
// Of those that the tile sees.
__device__ inline int64_t end_of_keys(const AttentionProblem& p, const TilePlace& at) {
  return end_of_keys(p, at, at.q0 + at.queries - 1);
}

// The first query that sees keys from k0 on. Who is in one document sees each other, so without
// causal it is the first token of the first key's document.
__device__ inline int64_t first_query_of(const AttentionProblem& p, const TilePlace& at) {
  return p.causal ? at.k0 : p.ends ? first_key(p, at.b, at.k0) : 0;
}

}  // namespace SIMT_SIDE

// Whether rows of all these can be moved in vectors of 16 bytes.
template <class V>
bool wide_heads(const AttentionSpec& spec, std::initializer_list<const View*> views) {
  bool wide = spec.D % simt::kVector<V> == 0;
  for (const View* v : views) wide = wide && simt::aligned_to_vectors(v->data);
  return wide;
}

}  // namespace snug
