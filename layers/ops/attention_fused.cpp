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

  // Tiles: 0 and 1 sums of out, 2 and 3 powers, 4 scores, 5 keys or values, 6 and 7 queries.
  bool narrow() const { return f.units <= 2; }
  void load_queries(const FusedForwardUnit& u) const {
    if (!narrow()) return;
    Tiles::template load<6>(u.q, kLine);
    if (f.units == 2) Tiles::template load<7>(u.q + kFusedTileFloats, kLine);
  }
  // Scores of 16 keys, in tile 4.
  void multiply_keys(const FusedForwardUnit& u, int64_t step) const {
    const float* k = u.k + step * kFusedTile * f.k_ld;
    Tiles::template zero<4>();
    if (narrow()) {
      Tiles::template load<5>(k, 4 * f.k_ld);
      Tiles::template multiply<4, 5, 6>();
      if (f.units == 2) {
        Tiles::template load<5>(k + kFusedTile, 4 * f.k_ld);
        Tiles::template multiply<4, 5, 7>();
      }
      return;
    }
    for (int64_t i = 0; i < f.units; ++i) {
      Tiles::template load<5>(k + i * kFusedTile, 4 * f.k_ld);
      Tiles::template load<6>(u.q + i * kFusedTileFloats, kLine);
      Tiles::template multiply<4, 5, 6>();
    }
  }
  void store_scores(int64_t n, int64_t step) const {
    Tiles::template store<4>(scores_of(n) + step * kFusedTileFloats, kLine);
  }

  void load_powers(const FusedForwardUnit& u, int64_t n) const {
    const float* p = powers_of(n);
    Tiles::template load<2>(p, kLine);
    if (u.keys > 2 * kFusedTile) Tiles::template load<3>(p + kFusedTileFloats, kLine);
  }
  template <int kSum>
  void add_values_to(const FusedForwardUnit& u, int64_t tile) const {
    const float* v = u.v + tile * kFusedTile * f.v_ld;
    float* out = u.out + tile * kFusedTileFloats;
    Tiles::template load<kSum>(out, kLine);
    Tiles::template load<5>(v, 4 * f.v_ld);
    Tiles::template multiply<kSum, 5, 2>();
    if (u.keys > 2 * kFusedTile) {
      Tiles::template load<5>(v + kFusedTile, 4 * f.v_ld);
      Tiles::template multiply<kSum, 5, 3>();
    }
    Tiles::template store<kSum>(out, kLine);
  }
  void add_values(const FusedForwardUnit& u, int64_t from, int64_t to) const {
    for (int64_t tile = from; tile < to; ++tile)
      if (tile % 2 == 0)
        add_values_to<0>(u, tile);
      else
        add_values_to<1>(u, tile);
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

  // Powers of 8 rows, from `row` on.
  template <bool kDropout>
  void powers(const float* s, float* p, int64_t row, V factor2, V low, V* even, V* odd) const {
#pragma GCC unroll 4
    for (int64_t k = row; k < row + 8; k += 2) {
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
    load_queries(u[0]);
    for (int64_t i = 0; i < u[0].keys / 16; ++i) {
      multiply_keys(u[0], i);
      store_scores(0, i);
    }
    for (int64_t n = 0; n < count; ++n) {
      const FusedForwardUnit& now = u[n];
      const int64_t steps = now.keys / 16, next_steps = n + 1 < count ? u[n + 1].keys / 16 : 0;
      float *s = scores_of(n), *p = powers_of(n);
      if (next_steps > 0) load_queries(u[n + 1]);
      if (now.sees) hide(now, s);
      // The reference of the powers rises only where they would pass 2^8: sums are seldom scaled.
      const V old = load(now.top), highest = mul(highest_of(s, now.keys), factor2);
      const __mmask16 rises = _mm512_cmp_ps_mask(highest, add(old, set1(8.0f)), _CMP_GT_OQ);
      const V top = _mm512_mask_mov_ps(old, rises, highest), low = sub(set1(0.0f), top);
      V even = set1(0.0f), odd = even;
      if (n > 0) load_powers(u[n - 1], n - 1);
      for (int64_t i = 0; i < steps; ++i) {
        if (i < next_steps) multiply_keys(u[n + 1], i);
        if constexpr (kDropout)
          dropout_bits(f.keep + i * 16 * kAttentionWords, 16, 16, f.key, f.sample, now.query,
                       now.channel4 + static_cast<uint32_t>(i * 4), f.threshold);
        powers<kDropout>(s, p, i * 16, factor2, low, &even, &odd);
        if (n > 0) add_values(u[n - 1], i * f.tall / steps, (i + 1) * f.tall / steps);
        powers<kDropout>(s, p, i * 16 + 8, factor2, low, &even, &odd);
        if (i < next_steps) store_scores(n + 1, i);
      }
      for (int64_t i = steps; i < next_steps; ++i) {
        multiply_keys(u[n + 1], i);
        store_scores(n + 1, i);
      }
      if (steps % 2 != 0)
        for (int64_t k = 0; k < 8; ++k) store(p + (steps * 8 + k) * 16, set1(0.0f));
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
    add_values(u[count - 1], 0, f.tall);
  }
};

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
  static constexpr AttentionFused kFused = {forward<blas::HardwareTiles>};
  return kFused;
}

const AttentionFused& attention_fused_emulated() {
  static constexpr AttentionFused kFused = {forward<blas::SoftwareTiles>};
  return kFused;
}

}  // namespace snug
