// The functions of AttentionBlocks, written once over a vector type. The including .cpp defines, in
// its anonymous namespace and for its instruction set:
//   V, I, kWidth, kPairs, kMaxVectors (vectors of a product's tile), kMaxRows, kTurn (steps of its
//   loop at once), and load, store, set1, add, sub, mul, fma (a * b + c), max_of (the second
//   operand if one is NaN), round_even, times_exp2 (p * 2^n for whole n), zero_below (0 where x <
//   bound, else y), zero_unless (0 where the lane's bit is 0), multiply_add (one step of a
//   product), iset1, iload, low_product (of the low halves of 64-bit lanes), high_half, xor3,
//   interleave (the low halves of even and odd lanes), lower_halves (of 32 bits, moved up),
//   at_least and halves_equal (of 16 bits; as bits), and with kPairs pair_rows (units of two rows'
//   lanes) and pair_lanes (units of 32 neighbouring lanes) and short_exp2_of.
// Nothing of the standard library is used here: a copy compiled for wide vectors must never be the
// one the linker keeps for everybody.

#pragma once

constexpr int64_t kLd = kAttentionBlock;

// 2^t: a polynomial on [-1/2, 1/2] (least worst relative error with p(0) = 1, by Remez' exchange)
// and the exponent. Relative error 8.4e-8. Exactly 0 below -126; NaN stays NaN.
inline V exp2_of(V t) {
  const V n = round_even(t), r = sub(t, n);
  V p = fma(set1(0x1.470b4ap-13f), r, set1(0x1.5f7276p-10f));
  p = fma(p, r, set1(0x1.3b270ep-7f));
  p = fma(p, r, set1(0x1.c6ae72p-5f));
  p = fma(p, r, set1(0x1.ebfbe2p-3f));
  p = fma(p, r, set1(0x1.62e432p-1f));
  p = fma(p, r, set1(1.0f));
  return zero_below(t, set1(-126.0f), times_exp2(p, n));
}

// The same for the powers of a tile. Pairs round them to 2^-9 next and have a shorter way.
template <class X>
inline X power_of(X t) {
  if constexpr (kPairs)
    return short_exp2_of(t);
  else
    return exp2_of(t);
}

template <int kRows, int kVectors>
inline void product_tile(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
                         const float* b, int64_t ldb, int64_t K, bool add_c) {
  V acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v)
      acc[r][v] = add_c ? load(c + r * ldc + v * kWidth) : set1(0.0f);
#pragma GCC unroll kTurn
  for (int64_t k = 0; k < K; ++k) {
    V bv[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) bv[v] = load(b + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V av = set1(a[r * a_row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = multiply_add(av, bv[v], acc[r][v]);
    }
    a += a_col;
    b += ldb;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + r * ldc + v * kWidth, acc[r][v]);
}

// The last M < kMaxRows rows.
template <int kRows, int kVectors>
inline void product_rest(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
                         const float* b, int64_t ldb, int64_t M, int64_t K, bool add_c) {
  if constexpr (kRows > 0) {
    if (M == kRows)
      product_tile<kRows, kVectors>(c, ldc, a, a_row, a_col, b, ldb, K, add_c);
    else
      product_rest<kRows - 1, kVectors>(c, ldc, a, a_row, a_col, b, ldb, M, K, add_c);
  }
}

template <int kVectors>
inline void product_columns(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col,
                            const float* b, int64_t ldb, int64_t M, int64_t K, bool add_c) {
  int64_t m = 0;
  for (; m + kMaxRows <= M; m += kMaxRows)
    product_tile<kMaxRows, kVectors>(c + m * ldc, ldc, a + m * a_row, a_row, a_col, b, ldb, K,
                                     add_c);
  product_rest<kMaxRows - 1, kVectors>(c + m * ldc, ldc, a + m * a_row, a_row, a_col, b, ldb, M - m,
                                       K, add_c);
}

void product(float* c, int64_t ldc, const float* a, int64_t a_row, int64_t a_col, const float* b,
             int64_t ldb, int64_t M, int64_t N, int64_t K, bool add_c) {
  int64_t n = 0;
  for (; n + kMaxVectors * kWidth <= N; n += kMaxVectors * kWidth)
    product_columns<kMaxVectors>(c + n, ldc, a, a_row, a_col, b + n, ldb, M, K, add_c);
  if constexpr (kMaxVectors > 2)
    for (; n + 2 * kWidth <= N; n += 2 * kWidth)
      product_columns<2>(c + n, ldc, a, a_row, a_col, b + n, ldb, M, K, add_c);
  for (; n < N; n += kWidth)
    product_columns<1>(c + n, ldc, a, a_row, a_col, b + n, ldb, M, K, add_c);
}

inline uint32_t bits_at(const uint16_t* keep, int64_t k, int64_t n) {
  return static_cast<uint32_t>(keep[k * kAttentionWords + n / 16]) >> (n % 16);
}

// kColumns vectors at once: down one column alone, the maximum waits for itself.
template <int kColumns, bool kDropout>
inline bool softmax_columns(float* s, int64_t n0, int64_t keys, float factor2, float* top,
                            float* sum, float* shrink, const uint16_t* keep) {
  const V f = set1(factor2);
  V highest[kColumns], low[kColumns], total[kColumns];
#pragma GCC unroll 4
  for (int v = 0; v < kColumns; ++v) highest[v] = load(s + n0 + v * kWidth);
  for (int64_t k = 1; k < keys; ++k)
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v)
      highest[v] = max_of(highest[v], load(s + k * kLd + n0 + v * kWidth));
  bool changed = false;
#pragma GCC unroll 4
  for (int v = 0; v < kColumns; ++v) {
    const int64_t n = n0 + v * kWidth;
    const V old = load(top + n), now = max_of(old, mul(highest[v], f));
    const V less = exp2_of(sub(old, now));
    total[v] = mul(load(sum + n), less);
    low[v] = sub(set1(0.0f), now);
    store(top + n, now);
    store(shrink + n, less);
    for (int64_t i = 0; i < kWidth; ++i) changed |= !(shrink[n + i] == 1.0f);
  }
  for (int64_t k = 0; k < keys; k += 2)
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      const int64_t n = n0 + v * kWidth;
      V p0 = power_of(fma(load(s + k * kLd + n), f, low[v])), p1 = set1(0.0f);
      if (k + 1 < keys) p1 = power_of(fma(load(s + (k + 1) * kLd + n), f, low[v]));
      total[v] = add(total[v], add(p0, p1));
      if constexpr (kDropout) {
        p0 = zero_unless(bits_at(keep, k, n), p0);
        if (k + 1 < keys) p1 = zero_unless(bits_at(keep, k + 1, n), p1);
      }
      if constexpr (kPairs) {
        store(s + k / 2 * kLd + n, pair_rows(p0, p1));
      } else {
        store(s + k * kLd + n, p0);
        if (k + 1 < keys) store(s + (k + 1) * kLd + n, p1);
      }
    }
#pragma GCC unroll 4
  for (int v = 0; v < kColumns; ++v) store(sum + n0 + v * kWidth, total[v]);
  return changed;
}

bool softmax_step(float* s, int64_t keys, int64_t lanes, float factor2, float* top, float* sum,
                  float* shrink, const uint16_t* keep) {
  constexpr int kTogether = kMaxVectors;
  bool changed = false;
  int64_t n = 0;
  for (; n + kTogether * kWidth <= lanes; n += kTogether * kWidth)
    changed |= keep
                   ? softmax_columns<kTogether, true>(s, n, keys, factor2, top, sum, shrink, keep)
                   : softmax_columns<kTogether, false>(s, n, keys, factor2, top, sum, shrink, keep);
  for (; n < lanes; n += kWidth)
    changed |= keep ? softmax_columns<1, true>(s, n, keys, factor2, top, sum, shrink, keep)
                    : softmax_columns<1, false>(s, n, keys, factor2, top, sum, shrink, keep);
  return changed;
}

void scale_lanes(float* c, int64_t rows, int64_t lanes, const float* factor) {
  for (int64_t n = 0; n < lanes; n += kWidth) {
    const V f = load(factor + n);
    for (int64_t r = 0; r < rows; ++r) store(c + r * kLd + n, mul(load(c + r * kLd + n), f));
  }
}

template <bool kDropout>
inline void backward_element(const float* s, const float* dp, int64_t k, int64_t n, V f, V low,
                             V shift, const uint16_t* keep, V kept, V* p, V* ds) {
  const V whole = power_of(fma(load(s + k * kLd + n), f, low));
  V d = load(dp + k * kLd + n);
  *p = whole;
  if constexpr (kDropout) {
    const uint32_t bits = bits_at(keep, k, n);
    *p = zero_unless(bits, whole);
    d = zero_unless(bits, mul(d, kept));
  }
  *ds = mul(whole, sub(d, shift));
}

template <bool kDropout>
inline void backward_all(float* s, float* dp, float* ds_keys, int64_t keys, int64_t lanes,
                         float factor2, const float* lse2, const float* delta, const uint16_t* keep,
                         float kept_factor) {
  const V f = set1(factor2), kept = set1(kept_factor), zero = set1(0.0f);
  if constexpr (kPairs) {
    // Two rows by two vectors: what a unit along the keys and one along the queries need.
    for (int64_t n = 0; n < lanes; n += 2 * kWidth) {
      const bool second = n + kWidth < lanes;
      const V low0 = sub(zero, load(lse2 + n)), shift0 = load(delta + n);
      const V low1 = second ? sub(zero, load(lse2 + n + kWidth)) : zero;
      const V shift1 = second ? load(delta + n + kWidth) : zero;
      for (int64_t k = 0; k < keys; k += 2) {
        V p[2][2] = {{zero, zero}, {zero, zero}}, ds[2][2] = {{zero, zero}, {zero, zero}};
        const bool both = k + 1 < keys;
        backward_element<kDropout>(s, dp, k, n, f, low0, shift0, keep, kept, &p[0][0], &ds[0][0]);
        if (both)
          backward_element<kDropout>(s, dp, k + 1, n, f, low0, shift0, keep, kept, &p[1][0],
                                     &ds[1][0]);
        if (second) {
          backward_element<kDropout>(s, dp, k, n + kWidth, f, low1, shift1, keep, kept, &p[0][1],
                                     &ds[0][1]);
          if (both)
            backward_element<kDropout>(s, dp, k + 1, n + kWidth, f, low1, shift1, keep, kept,
                                       &p[1][1], &ds[1][1]);
          store(ds_keys + k / 2 * kLd + n + kWidth, pair_rows(ds[0][1], ds[1][1]));
        }
        store(ds_keys + k / 2 * kLd + n, pair_rows(ds[0][0], ds[1][0]));
        store(s + k * kLd + n / 2, pair_lanes(p[0][0], p[0][1]));
        store(dp + k * kLd + n / 2, pair_lanes(ds[0][0], ds[0][1]));
        if (both) {
          store(s + (k + 1) * kLd + n / 2, pair_lanes(p[1][0], p[1][1]));
          store(dp + (k + 1) * kLd + n / 2, pair_lanes(ds[1][0], ds[1][1]));
        }
      }
    }
  } else {
    for (int64_t n = 0; n < lanes; n += kWidth) {
      const V low = sub(zero, load(lse2 + n)), shift = load(delta + n);
      for (int64_t k = 0; k < keys; ++k) {
        V p, ds;
        backward_element<kDropout>(s, dp, k, n, f, low, shift, keep, kept, &p, &ds);
        store(s + k * kLd + n, p);
        store(dp + k * kLd + n, ds);
      }
    }
  }
}

void backward_tile(float* s, float* dp, float* ds_keys, int64_t keys, int64_t lanes, float factor2,
                   const float* lse2, const float* delta, const uint16_t* keep, float kept) {
  if (keep)
    backward_all<true>(s, dp, ds_keys, keys, lanes, factor2, lse2, delta, keep, kept);
  else
    backward_all<false>(s, dp, ds_keys, keys, lanes, factor2, lse2, delta, keep, kept);
}

// Bits of lanes n .. of a key in its words.
inline void put_bits(uint16_t* keep, int64_t k, int64_t n, uint32_t bits) {
  uint16_t* word = keep + k * kAttentionWords + n / 16;
  *word = static_cast<uint16_t>(n % 16 == 0 ? bits : *word | bits << (n % 16));
}

// Where upper halves do not decide (open: bit 2 lane + half, of keys k and k + 1), the whole number
// does.
[[gnu::noinline, gnu::cold]] inline void settle_bits(uint16_t* keep, int64_t keys, int64_t k,
                                                     int64_t n, uint32_t open, RandomKey key,
                                                     uint64_t sample, uint32_t query0,
                                                     uint32_t channel, uint32_t threshold) {
  for (int64_t i = 0; i < 2 * kWidth; ++i) {
    const int64_t lane = n + i / 2, row = k + i % 2;
    if ((open >> i & 1) == 0 || row >= keys) continue;
    uint16_t* word = keep + row * kAttentionWords + lane / 16;
    const uint32_t bit = 1u << (lane % 16);
    const bool kept = channel_at_least(key, sample, query0 + static_cast<uint32_t>(lane),
                                       channel + static_cast<uint32_t>(row), threshold);
    *word = static_cast<uint16_t>(kept ? *word | bit : *word & ~bit);
  }
}

// Philox4x32-10 of kWidth positions: even and odd ones apart, each in the low half of a 64-bit
// lane, where a product needs no shuffle and what a high half holds does not matter. A block has
// eight keys, two a word. Only the position differs between lanes, so round 1 has no product of
// vectors, round 2 one that serves every channel, round 3 one.
void dropout_bits(uint16_t* keep, int64_t keys, int64_t lanes, RandomKey key, uint64_t sample,
                  uint32_t query0, uint32_t channel, uint32_t threshold) {
  constexpr uint32_t kA = 0xD2511F53u, kB = 0xCD9E8D57u, kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;
  const uint32_t upper = threshold >> 16;
  const I a = iset1(kA), b = iset1(kB), least = iset1(upper << 16),
          halves = iset1(upper * 0x10001u);
  const bool exact = (threshold & 0xffffu) == 0;  // an upper half that is equal is enough
  const uint64_t b_sample = uint64_t{kB} * static_cast<uint32_t>(sample);
  const auto high = static_cast<uint32_t>(sample >> 32);
  for (int64_t n = 0; n < lanes; n += kWidth) {
    I first[2];
    for (int odd = 0; odd < 2; ++odd) {
      const auto start = query0 + static_cast<uint32_t>(n) + static_cast<uint32_t>(odd);
      const I position = iadd(iset1(start), evens());
      first[odd] = low_product(
          xor3(position, iset1(static_cast<uint32_t>(b_sample >> 32)), iset1(key.k0)), a);
    }
    for (int64_t k = 0; k < keys; k += 8) {
      const uint64_t r1 = uint64_t{kA} * (channel / 8 + static_cast<uint32_t>(k / 8));
      const uint64_t r2 = uint64_t{kB} * (static_cast<uint32_t>(r1 >> 32) ^ high ^ key.k1);
      const uint64_t r3 = uint64_t{kA} * (static_cast<uint32_t>(r2 >> 32) ^
                                          static_cast<uint32_t>(b_sample) ^ (key.k0 + kStep0));
      I out[2][4];
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const I third = low_product(
            xor3(high_half(first[odd]), iset1(static_cast<uint32_t>(r1)), iset1(key.k1 + kStep1)),
            b);
        uint32_t k0 = key.k0 + 2 * kStep0, k1 = key.k1 + 2 * kStep1;
        I c0 = xor3(high_half(third), iset1(static_cast<uint32_t>(r2)), iset1(k0)), c1 = third;
        I c2 = xor3(first[odd], iset1(static_cast<uint32_t>(r3 >> 32)), iset1(k1));
        I c3 = iset1(static_cast<uint32_t>(r3));
#pragma GCC unroll 7
        for (int round = 3; round < 10; ++round) {
          k0 += kStep0;
          k1 += kStep1;
          const I p0 = low_product(c0, a), p1 = low_product(c2, b);
          c0 = xor3(high_half(p1), c1, iset1(k0));
          c2 = xor3(high_half(p0), c3, iset1(k1));
          c1 = p1;
          c3 = p0;
        }
        out[odd][0] = c0;
        out[odd][1] = c1;
        out[odd][2] = c2;
        out[odd][3] = c3;
      }
      uint32_t open = 0;
#pragma GCC unroll 4
      for (int64_t w = 0; w < 4; ++w) {
        const int64_t pair = k + 2 * w;
        if (pair >= keys) break;
        const I x = interleave(out[0][w], out[1][w]);
        put_bits(keep, pair, n, at_least(lower_halves(x), least));
        if (pair + 1 < keys) put_bits(keep, pair + 1, n, at_least(x, least));
        open |= halves_equal(x, halves);
      }
      if (open == 0 || exact) [[likely]]
        continue;
      for (int64_t w = 0; w < 4 && k + 2 * w < keys; ++w)
        settle_bits(keep, keys, k + 2 * w, n,
                    halves_equal(interleave(out[0][w], out[1][w]), halves), key, sample, query0,
                    channel, threshold);
    }
  }
}
