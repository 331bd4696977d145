// The loops of engine/kernels/loops.h over the sixteen floats of wide_avx2.h or wide_avx512.h.
#pragma once

template <class Y, class X>
void cast_loop(Y* y, const X* x, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) { store_lanes(y + i, load_lanes(x + i, r), r); });
}
template <class Y, class X>
void add_loop(Y* y, const X* x, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) {
    store_lanes(y + i, load_lanes(y + i, r) + load_lanes(x + i, r), r);
  });
}
template <class T>
void sum_loop(T* y, const T* a, const T* b, int64_t n) {
  each16(n, [=](int64_t i, int64_t r) {
    store_lanes(y + i, load_lanes(a + i, r) + load_lanes(b + i, r), r);
  });
}
template <class T>
void scale_loop(T* x, float factor, int64_t n) {
  const V f = set1(factor);
  each16(n, [=](int64_t i, int64_t r) { store_lanes(x + i, load_lanes(x + i, r) * f, r); });
}

// Four rows at a time: the sums pass through the registers once for four of them.
template <class T>
void add_rows_loop(float* sum, const T* x, int64_t rows, int64_t stride, int64_t n) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const T* p = x + row * stride;
    each16(n, [=](int64_t i, int64_t r) {
      const V two = (load_lanes(sum + i, r) + load_lanes(p + i, r)) + load_lanes(p + stride + i, r);
      store_lanes(sum + i,
                  (two + load_lanes(p + 2 * stride + i, r)) + load_lanes(p + 3 * stride + i, r), r);
    });
  }
  for (; row < rows; ++row) add_loop(sum, x + row * stride, n);
}

double square_sum(const float* x, int64_t n) {
  D ab = zero_doubles(), cd = zero_doubles();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    ab = ab + square_of(x + i);
    cd = cd + square_of(x + i + 8);
  }
  double rest = 0;
  for (; i < n; ++i) rest += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return fold(_mm256_add_pd(_mm256_add_pd(low_half(ab), high_half(ab)),
                            _mm256_add_pd(low_half(cd), high_half(cd)))) +
         rest;
}
