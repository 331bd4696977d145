// What the loops of both instruction sets share, written over the sixteen floats V of wide_avx2.h
// or wide_avx512.h; included after one of them, inside its namespace.
#pragma once

// f(i, r) for i = 0, 16, 32 ... below n; r elements count: 16, or n % 16 at the end.
template <class F>
inline void each16(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, 16);
  if (i < n) f(i, n - i);
}
// load and store where r is 16, else the first r.
template <class T>
inline V load_lanes(const T* p, int64_t r) {
  return r == 16 ? load(p) : load_part(p, r);
}
template <class T>
inline void store_lanes(T* p, V x, int64_t r) {
  if (r == 16)
    store(p, x);
  else
    store_part(p, x, r);
}

// Past the caches, where a row is of whole lines, or not.
template <bool kStream, class T>
inline void put(T* p, V x, int64_t r) {
  if constexpr (kStream)
    stream(p, x);
  else
    store_lanes(p, x, r);
}

template <bool kStream, class T>
inline void put32(T* p, V a, V b) {
  if constexpr (kStream)
    stream32(p, a, b);
  else
    store32(p, a, b);
}

// A line that will be read; any address may be given.
inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

inline float fold(__m256 v) {
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
inline double fold(__m256d v) {
  const __m128d d = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(d, _mm_unpackhi_pd(d, d)));
}

// The sum of a row in the order of tests/support/reference/lanes.h: four accumulators of eight
// lanes, whole eights of what is left over on the first, the rest on the second, folded in a fixed
// tree. No constructor: an implicit one would not be compiled for the instruction set of the file.
struct RowSum {
  V ab, cd;
  // Terms i to i + 31, i a multiple of 32.
  void add32(V first, V second) {
    ab = ab + first;
    cd = cd + second;
  }
  // r terms of the last, incomplete 32: sixteen, then what is left.
  void add_rest(V x, int64_t r) {
    if (r >= 8) ab = ab + keep_lanes(0xff, x);
    if (r == 16)
      ab = ab + keep_lanes(0xff, swap_halves(x));
    else if (r > 8)
      ab = ab + keep_lanes(((1u << r) - 1) & 0xff00, x);
    else if (r < 8)
      ab = ab + swap_halves(keep_lanes((1u << r) - 1, x));
  }
  float total() const {
    return fold(_mm256_add_ps(_mm256_add_ps(low_half(ab), high_half(ab)),
                              _mm256_add_ps(low_half(cd), high_half(cd))));
  }
};
inline RowSum no_sum() {
  return {set1(0.0f), set1(0.0f)};
}

// f(i, r) gives the terms from i on.
template <class F>
inline float sum_row(int64_t n, F&& f) {
  RowSum sum = no_sum();
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) sum.add32(f(i, 16), f(i + 16, 16));
  each16(n - i, [&](int64_t j, int64_t r) { sum.add_rest(f(i + j, r), r); });
  return sum.total();
}

// e^r - 1 for |r| <= ln2/2, to 2 ulp: the polynomial of exp_within.
inline V exp_less_one(V r) {
  V p = fma(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  return fma(p, r * r, r);
}

// e^x for x from -87.33 to 88, relative error below 2.5e-7 (2 ulp), NaN stays NaN: x = n ln2 + r
// with |r| <= ln2/2, then a polynomial of degree 6 (Cephes' expf constants). Adding 1.5 * 2^23 +
// 127 leaves the nearest whole number, biased as an exponent is, in the lowest bits.
inline V exp_within(V x) {
  const V shift = set1(12583039.0f);
  const V biased = fma(x, set1(1.44269504088896341f), shift);
  const V n = biased - shift;
  const V r = fnma(n, set1(-2.12194440e-4f), fnma(n, set1(0.693359375f), x));
  return (exp_less_one(r) + set1(1.0f)) * exponent_bits(biased);
}
// The same, and exactly 0 below -87.33.
inline V exp_of(V x) {
  const V lowest = set1(-87.33f);
  return zero_below(x, lowest, exp_within(max_of(lowest, x)));
}
