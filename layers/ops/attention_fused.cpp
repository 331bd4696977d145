// Compiled for AVX-512 whatever the flags of the build: called only where the CPU has it. Headers
// come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "layers/ops/attention_fused.h"

#include <immintrin.h>

#include "engine/blas/amx_tiles.h"
#include "layers/ops/attention_blocks.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
#endif

namespace snug {
namespace {

#include "layers/ops/attention_vectors_avx512.h"
#include "layers/ops/attention_vectors_bf16.h"

constexpr int64_t kLine = 4 * kFusedTile;  // bytes of a row of a contiguous tile

// Units of two rows: each value to the nearest bf16, halves up in magnitude. Two instructions less
// than rounding by the CPU's and sorting.
inline V unit_of_rows(V even, V odd) {
  const I half = _mm512_set1_epi32(0x8000);
  const I low = _mm512_srli_epi32(_mm512_add_epi32((I)even, half), 16);
  return (V)_mm512_mask_blend_epi16(0xAAAAAAAA, low, _mm512_add_epi32((I)odd, half));
}

template <class Tiles>
struct Forward {
  const FusedForward& f;

  float* scores_of(int64_t n) const { return f.s + n % 2 * 4 * kFusedTileFloats; }
  float* powers_of(int64_t n) const { return f.p + n % 2 * 2 * kFusedTileFloats; }

  // Work of the tile unit comes in stages that fill two tiles of sums; a stage stores what the one
  // before it has made, long enough ago. Tiles: 0 and 1 sums of out, 2 and 3 powers, 4 and 5
  // scores, 6 and 7 operands.
  struct Stores {
    float *first = nullptr, *second = nullptr;
    bool scores = false;
  };
  static void finish(Stores* to) {
    if (to->scores) {
      if (to->first) Tiles::template store<4>(to->first, kLine);
      if (to->second) Tiles::template store<5>(to->second, kLine);
    } else {
      if (to->first) Tiles::template store<0>(to->first, kLine);
      if (to->second) Tiles::template store<1>(to->second, kLine);
    }
    *to = {};
  }

  // Scores of 16 or 32 keys.
  template <bool kTwo>
  void multiply_keys(const FusedForwardUnit& u, int64_t step) const {
    const float* k = u.k + step * kFusedTile * f.k_ld;
    Tiles::template zero<4>();
    if (kTwo) Tiles::template zero<5>();
    for (int64_t i = 0; i < f.units; ++i) {
      Tiles::template load<7>(u.q + i * kFusedTileFloats, kLine);
      Tiles::template load<6>(k + i * kFusedTile, 4 * f.k_ld);
      Tiles::template multiply<4, 6, 7>();
      if (kTwo) {
        Tiles::template load<6>(k + i * kFusedTile + kFusedTile * f.k_ld, 4 * f.k_ld);
        Tiles::template multiply<5, 6, 7>();
      }
    }
  }
  void scores_stage(const FusedForwardUnit& u, int64_t n, int64_t pair, Stores* to) const {
    finish(to);
    float* s = scores_of(n) + 2 * pair * kFusedTileFloats;
    const bool two = 2 * pair + 1 < u.keys / kFusedTile;
    if (two)
      multiply_keys<true>(u, 2 * pair);
    else
      multiply_keys<false>(u, 2 * pair);
    *to = {s, two ? s + kFusedTileFloats : nullptr, true};
  }

  void load_powers(const FusedForwardUnit& u, int64_t n) const {
    const float* p = powers_of(n);
    Tiles::template load<2>(p, kLine);
    if (u.keys > 2 * kFusedTile) Tiles::template load<3>(p + kFusedTileFloats, kLine);
  }
  // 16 or 32 columns of the values.
  template <bool kTwo, bool kLong>
  void multiply_values(const float* v, float* out) const {
    const float* second = v + kFusedTile * f.v_ld;
    Tiles::template load<0>(out, kLine);
    if (kTwo) Tiles::template load<1>(out + kFusedTileFloats, kLine);
    Tiles::template load<6>(v, 4 * f.v_ld);
    Tiles::template multiply<0, 6, 2>();
    if (kTwo) {
      Tiles::template load<7>(second, 4 * f.v_ld);
      Tiles::template multiply<1, 7, 2>();
    }
    if (!kLong) return;
    Tiles::template load<6>(v + kFusedTile, 4 * f.v_ld);
    Tiles::template multiply<0, 6, 3>();
    if (kTwo) {
      Tiles::template load<7>(second + kFusedTile, 4 * f.v_ld);
      Tiles::template multiply<1, 7, 3>();
    }
  }
  void values_stage(const FusedForwardUnit& u, int64_t pair, Stores* to) const {
    finish(to);
    const float* v = u.v + 2 * pair * kFusedTile * f.v_ld;
    float* out = u.out + 2 * pair * kFusedTileFloats;
    const bool two = 2 * pair + 1 < f.tall, more = u.keys > 2 * kFusedTile;
    if (two && more)
      multiply_values<true, true>(v, out);
    else if (two)
      multiply_values<true, false>(v, out);
    else if (more)
      multiply_values<false, true>(v, out);
    else
      multiply_values<false, false>(v, out);
    *to = {out, two ? out + kFusedTileFloats : nullptr, false};
  }

  static V highest_of(const float* s, int64_t keys) {
    V a = load(s), b = load(s + 16), c = load(s + 32), d = load(s + 48);
    for (int64_t k = 4; k < keys; k += 4) {
      a = max_of(a, load(s + k * 16));
      b = max_of(b, load(s + k * 16 + 16));
      c = max_of(c, load(s + k * 16 + 32));
      d = max_of(d, load(s + k * 16 + 48));
    }
    return max_of(max_of(a, b), max_of(c, d));
  }
  // Scores of keys that a query does not see become minus infinity.
  static void hide(const FusedForwardUnit& u, float* s) {
    const I first = _mm512_loadu_si512(u.sees), end = _mm512_loadu_si512(u.sees + kAttentionBlock);
    for (int32_t k = 0; k < u.keys; ++k) {
      const I key = _mm512_set1_epi32(u.first_key + k);
      const __mmask16 seen =
          _mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(key, first), key, end);
      store(s + k * 16, _mm512_mask_mov_ps(set1(-__builtin_inff()), seen, load(s + k * 16)));
    }
  }

  // Powers of 16 rows, from `row` on.
  template <bool kDropout>
  void powers(const float* s, float* p, int64_t row, V factor2, V low, V* even, V* odd) const {
#pragma GCC unroll 8
    for (int64_t k = row; k < row + 16; k += 2) {
      V p0 = short_exp2_of(fma(load(s + k * 16), factor2, low));
      V p1 = short_exp2_of(fma(load(s + k * 16 + 16), factor2, low));
      *even = add(*even, p0);
      *odd = add(*odd, p1);
      if constexpr (kDropout) {
        p0 = zero_unless(f.keep[k * kAttentionWords], p0);
        p1 = zero_unless(f.keep[(k + 1) * kAttentionWords], p1);
      }
      store(p + k / 2 * 16, unit_of_rows(p0, p1));
    }
  }

  template <bool kDropout>
  void run(const FusedForwardUnit* u, int64_t count) const {
    const auto dropout_bits = attention_blocks_avx512_bf16().dropout_bits;
    const V factor2 = set1(f.factor2);
    const int64_t value_stages = (f.tall + 1) / 2;
    int64_t asked = 0;
    Stores stores;
    for (int64_t i = 0; i < (u[0].keys + 31) / 32; ++i) scores_stage(u[0], 0, i, &stores);
    finish(&stores);
    for (int64_t n = 0; n < count; ++n) {
      const FusedForwardUnit& now = u[n];
      const int64_t steps = now.keys / 16;
      const int64_t score_stages = n + 1 < count ? (u[n + 1].keys + 31) / 32 : 0;
      const int64_t stages = score_stages + (n > 0 ? value_stages : 0);
      float *s = scores_of(n), *p = powers_of(n);
      for (const int64_t end = asked + f.ask; asked < end && asked < f.ahead_rows; ++asked)
        for (const char* rows : f.ahead)
          for (int64_t byte = 0; byte < f.ahead_bytes; byte += 64)
            __builtin_prefetch(rows + asked * f.ahead_stride + byte, 0, 2);
      if (now.sees) hide(now, s);
      // The reference of the powers rises only where they would pass 2^8: sums are seldom scaled.
      const V old = load(now.top), highest = mul(highest_of(s, now.keys), factor2);
      const __mmask16 rises = _mm512_cmp_ps_mask(highest, add(old, set1(8.0f)), _CMP_GT_OQ);
      const V top = _mm512_mask_mov_ps(old, rises, highest), low = sub(set1(0.0f), top);
      V even = set1(0.0f), odd = even;
      if (n > 0) load_powers(u[n - 1], n - 1);
      for (int64_t i = 0; i < steps; ++i) {
        for (int64_t j = i * stages / steps; j < (i + 1) * stages / steps; ++j)
          if (j < score_stages)
            scores_stage(u[n + 1], n + 1, j, &stores);
          else
            values_stage(u[n - 1], j - score_stages, &stores);
        if constexpr (kDropout)
          dropout_bits(f.keep + i * 16 * kAttentionWords, 16, 16, f.key, f.sample, now.query,
                       now.channel + static_cast<uint32_t>(i * 16), f.threshold);
        powers<kDropout>(s, p, i * 16, factor2, low, &even, &odd);
      }
      if (steps % 2 != 0)
        for (int64_t k = 0; k < 8; ++k) store(p + (steps * 8 + k) * 16, set1(0.0f));
      // What waits may be scores, which come next, or sums that are scaled here.
      if (stores.scores || rises != 0) finish(&stores);
      V sum = load(now.sum);
      if (rises != 0) {
        const V shrink = short_exp2_of(sub(old, top));
        sum = mul(sum, shrink);
        for (int64_t d = 0; d < f.tall * kFusedTile; ++d)
          store(now.out + d * 16, mul(load(now.out + d * 16), shrink));
        store(now.top, top);
      }
      store(now.sum, add(sum, add(even, odd)));
    }
    load_powers(u[count - 1], count - 1);
    for (int64_t j = 0; j < value_stages; ++j) values_stage(u[count - 1], j, &stores);
    finish(&stores);
  }
};

template <bool kDropout, bool kMasked>
void backward_lanes(const FusedBackwardTile& t) {
  const V factor2 = set1(t.factor2), kept = set1(t.kept);
  V low[2], shift[2];
  I first[2], end[2];
  for (int v = 0; v < 2; ++v) {
    low[v] = sub(set1(0.0f), load(t.lse2 + v * kWidth));
    shift[v] = load(t.delta + v * kWidth);
    if constexpr (kMasked) {
      first[v] = _mm512_loadu_si512(t.sees + v * kWidth);
      end[v] = _mm512_loadu_si512(t.sees + kAttentionBlock + v * kWidth);
    }
  }
  for (int64_t k = 0; k < t.keys; k += 2) {
    V p[2][2], ds[2][2];
#pragma GCC unroll 2
    for (int row = 0; row < 2; ++row)
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const int64_t at = (k + row) * kFusedLanes + v * kWidth;
        V whole = short_exp2_of(fma(load(t.s + at), factor2, low[v])), d = load(t.dp + at);
        if constexpr (kMasked) {
          const I key = _mm512_set1_epi32(t.first_key + static_cast<int32_t>(k) + row);
          whole = _mm512_maskz_mov_ps(
              _mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(key, first[v]), key, end[v]),
              whole);
        }
        p[row][v] = whole;
        if constexpr (kDropout) {
          const uint32_t bits = t.keep[(k + row) * kAttentionWords + v];
          p[row][v] = zero_unless(bits, whole);
          d = zero_unless(bits, mul(d, kept));
        }
        ds[row][v] = mul(whole, sub(d, shift[v]));
      }
#pragma GCC unroll 2
    for (int row = 0; row < 2; ++row) {
      store(t.p + (k + row) * kAttentionBlock / 2, pair_lanes(p[row][0], p[row][1]));
      store(t.ds + (k + row) * kAttentionBlock / 2, pair_lanes(ds[row][0], ds[row][1]));
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
      store(t.ds_keys + k / 2 * kAttentionBlock + v * kWidth, pair_rows(ds[0][v], ds[1][v]));
  }
}

void backward(const FusedBackwardTile& t) {
  if (t.keep)
    (t.sees ? backward_lanes<true, true> : backward_lanes<true, false>)(t);
  else
    (t.sees ? backward_lanes<false, true> : backward_lanes<false, false>)(t);
}

template <class Tiles>
void forward(const FusedForward& pass, const FusedForwardUnit* units, int64_t n) {
  if (n == 0) return;
  const Forward<Tiles> run{pass};
  if (pass.keep)
    run.template run<true>(units, n);
  else
    run.template run<false>(units, n);
}

}  // namespace

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const AttentionFused& attention_fused() {
  static constexpr AttentionFused kFused = {forward<blas::HardwareTiles>, backward};
  return kFused;
}

const AttentionFused& attention_fused_emulated() {
  static constexpr AttentionFused kFused = {forward<blas::SoftwareTiles>, backward};
  return kFused;
}

}  // namespace snug
