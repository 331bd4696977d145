// The functions of AttentionBlocks, written once over a vector type. The including .cpp defines, in
// its anonymous namespace and for its instruction set:
//   V, I, kWidth, kMaxVectors (vectors of a product's tile), kMaxRows, and load, store, set1, add,
//   sub, mul, fma (a * b + c), fnma (c - a * b), max_of (the second operand if one is NaN), min_of,
//   round_even, exp2_of (2^n for whole n), zero_below (0 where x < bound, else y),
//   iset1, iload, iadd, ixor, mul_wide (high and low halves of u32 products), keep_from.
// Nothing of the standard library is used here: a copy compiled for wide vectors must never be the
// one the linker keeps for everybody.

#pragma once

constexpr int64_t kLd = kAttentionBlock;

// e^x to 2 ulp by Cephes' expf; exactly 0 below -87.33; NaN stays NaN.
inline V exp_of(V x) {
  const V lowest = set1(-87.33f);
  const V z = min_of(set1(88.37f), max_of(lowest, x));
  const V n = round_even(mul(z, set1(1.44269504088896341f)));
  const V r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), z));
  V p = fma(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return zero_below(x, lowest, mul(p, exp2_of(n)));
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
  for (int64_t k = 0; k < K; ++k) {
    V bv[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) bv[v] = load(b + v * kWidth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V av = set1(a[r * a_row]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = fma(av, bv[v], acc[r][v]);
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

bool softmax_step(float* s, int64_t keys, int64_t lanes, float* top, float* sum, float* factor) {
  bool changed = false;
  for (int64_t n = 0; n < lanes; n += kWidth) {
    const V old = load(top + n);
    V highest = old;
    for (int64_t k = 0; k < keys; ++k) highest = max_of(highest, load(s + k * kLd + n));
    const V shrink = exp_of(sub(old, highest));
    V total = mul(load(sum + n), shrink);
    for (int64_t k = 0; k < keys; ++k) {
      const V e = exp_of(sub(load(s + k * kLd + n), highest));
      store(s + k * kLd + n, e);
      total = add(total, e);
    }
    store(top + n, highest);
    store(sum + n, total);
    store(factor + n, shrink);
    for (int64_t i = 0; i < kWidth; ++i) changed |= !(factor[n + i] == 1.0f);
  }
  return changed;
}

void scale_lanes(float* c, int64_t rows, int64_t lanes, const float* factor) {
  for (int64_t n = 0; n < lanes; n += kWidth) {
    const V f = load(factor + n);
    for (int64_t r = 0; r < rows; ++r) store(c + r * kLd + n, mul(load(c + r * kLd + n), f));
  }
}

void apply_mask(float* s, const float* mask, int64_t keys, int64_t lanes) {
  for (int64_t k = 0; k < keys; ++k)
    for (int64_t n = 0; n < lanes; n += kWidth)
      store(s + k * kLd + n, mul(load(s + k * kLd + n), load(mask + k * kLd + n)));
}

void backward_tile(float* s, float* dp, const float* mask, int64_t keys, int64_t lanes,
                   const float* lse, const float* delta) {
  for (int64_t n = 0; n < lanes; n += kWidth) {
    const V log_sum = load(lse + n), shift = load(delta + n);
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t at = k * kLd + n;
      const V p = exp_of(sub(load(s + at), log_sum));
      V kept = p, d = load(dp + at);
      if (mask) {
        const V m = load(mask + at);
        kept = mul(p, m);
        d = mul(d, m);
      }
      store(s + at, kept);
      store(dp + at, mul(p, sub(d, shift)));
    }
  }
}

void dropout_mask(float* mask, int64_t keys, int64_t lanes, RandomKey key, uint64_t sample,
                  uint32_t query0, uint32_t channel4, float dropout, float kept) {
  for (int64_t k = 0; k < keys; k += 4)
    for (int64_t n = 0; n < lanes; n += kWidth) {
      I c0 = iset1(channel4 + static_cast<uint32_t>(k / 4));
      I c1 = iadd(iset1(query0 + static_cast<uint32_t>(n)), iload(kLaneNumbers));
      I c2 = iset1(static_cast<uint32_t>(sample)), c3 = iset1(static_cast<uint32_t>(sample >> 32));
      uint32_t k0 = key.k0, k1 = key.k1;
      for (int round = 0; round < 10; ++round) {
        I high0, low0, high1, low1;
        mul_wide(c0, 0xD2511F53u, &high0, &low0);
        mul_wide(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = ixor(ixor(high1, c1), iset1(k0));
        c1 = low1;
        c2 = ixor(ixor(high0, c3), iset1(k1));
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
      const I lanes_of[4] = {c0, c1, c2, c3};
      for (int64_t i = 0; i < 4 && k + i < keys; ++i)
        store(mask + (k + i) * kLd + n, keep_from(lanes_of[i], dropout, kept));
    }
}
