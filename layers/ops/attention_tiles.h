// Tiles of attention in shared memory: what the forward and backward kernels share. A tile has rows
// of D floats, padded with zeros to `padded`, at a stride whose quarter is odd, so that eight
// threads reading 16 bytes of eight rows meet in no bank.
#pragma once

#include "engine/core/units.h"
#include "engine/simt/map.h"
#include "layers/ops/attention.h"
#include "layers/ops/dropout_device.h"

namespace snug {

inline constexpr int kTileQueries = 32;  // of a tile
inline constexpr int kMicro = 4;         // a thread takes 4 x 4 values at a time
inline constexpr int kMicroRows = kTileQueries / kMicro;

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
        causal(s.causal),
        window(s.window),
        key_lengths(s.key_lengths.defined() ? s.key_lengths.as<const int32_t>() : nullptr),
        starts(s.document_start.defined() ? s.document_start.as<const int32_t>() : nullptr),
        state(s.dropout > 0 ? step_state(step) : nullptr),
        mask(DropoutSpec{s.dropout, s.site}) {}

  int64_t tokens, qkv_row, heads, groups;
  int width, padded, stride;
  float scale;
  bool causal;
  int64_t window;     // 0: no limit
  bool wide = false;  // rows can be read in vectors of 16 bytes
  const int32_t* key_lengths;
  const int32_t* starts;
  const StepState* state;  // null without dropout
  MaskConstants mask;
};

inline namespace SIMT_SIDE {

using simt::Pack;
using simt::Shared;
using Four = simt::Pack<float, kMicro>;

// to[r][c] = from[r row_stride + c] for r < valid and c < width, else 0, for `rows` rows.
template <class V>
__device__ inline void load_rows(const Shared<float>& to, const V* from, int64_t row_stride,
                                 int valid, int rows, const AttentionProblem& p) {
  constexpr int kWide = simt::kVector<V>;
  if (p.wide) {
    const int pieces = p.padded / kWide;
    for (int i = simt::thread(); i < rows * pieces; i += simt::threads()) {
      const int r = i / pieces, c = i % pieces * kWide;
      Pack<float, kWide> out{};
      if (r < valid) {
        const auto in = Pack<V, kWide>::load(from + r * row_stride + c);
        for (int k = 0; k < kWide; ++k) out[k] = to_f32(in[k]);
      }
      out.store(to, r * p.stride + c);
    }
    return;
  }
  for (int i = simt::thread(); i < rows * p.padded; i += simt::threads()) {
    const int r = i / p.padded, c = i % p.padded;
    to[r * p.stride + c] = r < valid && c < p.width ? to_f32(from[r * row_stride + c]) : 0.0f;
  }
}

__device__ inline void zero_rows(const Shared<float>& to, int rows, const AttentionProblem& p) {
  for (int i = simt::thread(); i < rows * p.stride / kMicro; i += simt::threads())
    Four{}.store(to, i * kMicro);
}

// to[r row_stride + c] = from[r][c] factor(r) for r < valid.
template <class V, class F>
__device__ inline void store_rows(V* to, int64_t row_stride, const Shared<float>& from, int valid,
                                  const AttentionProblem& p, F&& factor) {
  constexpr int kWide = simt::kVector<V>;
  if (p.wide) {
    const int pieces = p.width / kWide;
    for (int i = simt::thread(); i < valid * pieces; i += simt::threads()) {
      const int r = i / pieces, c = i % pieces * kWide;
      const auto in = Pack<float, kWide>::load(from, r * p.stride + c);
      const float f = factor(r);
      Pack<V, kWide> out;
      for (int k = 0; k < kWide; ++k) out[k] = from_f32<V>(in[k] * f);
      out.store(to + r * row_stride + c);
    }
    return;
  }
  for (int i = simt::thread(); i < valid * p.width; i += simt::threads()) {
    const int r = i / p.width, c = i % p.width;
    to[r * row_stride + c] = from_f32<V>(from[r * p.stride + c] * factor(r));
  }
}

// s[i][j] = the product of rows y + kMicroRows i of `a` and x + kColumns j of `b`.
template <int kColumns>
__device__ inline void dots(float (&s)[kMicro][kMicro], const Shared<float>& a,
                            const Shared<float>& b, int y, int x, const AttentionProblem& p) {
  for (int i = 0; i < kMicro; ++i)
    for (int j = 0; j < kMicro; ++j) s[i][j] = 0.0f;
  for (int d = 0; d < p.padded; d += kMicro) {
    Four q[kMicro], k[kMicro];
    for (int i = 0; i < kMicro; ++i) {
      q[i] = Four::load(a, (y + kMicroRows * i) * p.stride + d);
      k[i] = Four::load(b, (x + kColumns * i) * p.stride + d);
    }
    for (int i = 0; i < kMicro; ++i)
      for (int j = 0; j < kMicro; ++j)
        for (int t = 0; t < kMicro; ++t) s[i][j] = simt::fma(q[i][t], k[j][t], s[i][j]);
  }
}

// out[r][c] = out[r][c] scale(r) + sum over kKeys of w[r][k] x[k][c], for all queries r.
template <int kKeys, class F>
__device__ inline void add_products(const Shared<float>& out, const Shared<float>& w,
                                    const Shared<float>& x, const AttentionProblem& p, F&& scale) {
  constexpr int kRow = kKeys + kMicro;
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
    for (int k = 0; k < kKeys; k += kMicro) {
      Four weight[kMicro];
      for (int i = 0; i < kMicro; ++i) weight[i] = Four::load(w, (y + kMicroRows * i) * kRow + k);
      for (int t = 0; t < kMicro; ++t) {
        const auto value = Four::load(x, (k + t) * p.stride + c);
        for (int i = 0; i < kMicro; ++i)
          for (int j = 0; j < kMicro; ++j) sum[i][j] = simt::fma(weight[i][t], value[j], sum[i][j]);
      }
    }
    for (int i = 0; i < kMicro; ++i) sum[i].store(out, (y + kMicroRows * i) * p.stride + c);
  }
}

// out[k][c] += sum over the queries r of w[r][k] x[r][c], for kKeys keys.
template <int kKeys>
__device__ inline void add_transposed_products(const Shared<float>& out, const Shared<float>& w,
                                               const Shared<float>& x, const AttentionProblem& p) {
  constexpr int kRow = kKeys + kMicro;
  const int columns = p.padded / kMicro;
  for (int m = simt::thread(); m < kKeys / kMicro * columns; m += simt::threads()) {
    const int c = m % columns * kMicro, key = m / columns * kMicro;
    Four sum[kMicro];
    for (int i = 0; i < kMicro; ++i) sum[i] = Four::load(out, (key + i) * p.stride + c);
    for (int r = 0; r < kTileQueries; ++r) {
      const auto weight = Four::load(w, r * kRow + key), value = Four::load(x, r * p.stride + c);
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
         (p.window == 0 || j > i - p.window) && (!p.starts || j >= p.starts[at.b * p.tokens + i]);
}

// keep[r][k / 4]: the kept ones of four keys. The channels of a head begin at h 2^20.
__device__ inline void load_mask(const Shared<uint32_t>& keep, const MaskKey& key, int keys,
                                 const TilePlace& at, const AttentionProblem& p) {
  const int groups = keys / 4;
  for (int i = simt::thread(); i < kTileQueries * groups; i += simt::threads())
    keep[i] = keep_four(key, at.b, at.q0 + i / groups,
                        at.h * (int64_t{1} << 18) + at.k0 / 4 + i % groups, p.mask.threshold);
}

__device__ inline int64_t keys_of(const AttentionProblem& p, int64_t b) {
  return p.key_lengths ? p.key_lengths[b] : p.tokens;
}

// Of G that query head h reads.
__device__ inline int64_t key_head(const AttentionProblem& p, int64_t h) {
  return h / (p.heads / p.groups);
}

// The first key that any query from q0 on sees, and the end of those that the tile sees.
__device__ inline int64_t first_key(const AttentionProblem& p, int64_t b, int64_t q0) {
  const int64_t document = p.starts ? p.starts[b * p.tokens + q0] : 0, far = q0 - p.window + 1;
  return p.window > 0 && far > document ? far : document;
}
__device__ inline int64_t end_of_keys(const AttentionProblem& p, const TilePlace& at) {
  const int64_t last = at.q0 + at.queries;
  return p.causal && last < at.keys ? last : at.keys;
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
