// Rows of root mean square normalisation over the sixteen floats V; see layers/ops/row_loops.h.
// Flattened, as in row_loops_gated.h. What rows ahead, rows together and stores past the caches are
// for is said in row_loops_norm.h.
#pragma once

template <bool kOffset, class W>
inline V rms_weight(const W* weight, int64_t r) {
  const V w = load_lanes(weight, r);
  return kOffset ? w + set1(1.0f) : w;
}

// R rows beside each other, each with the bits it has alone.
template <bool kStream, bool kOffset, int R, class T, class W>
__attribute__((flatten)) void rms_forward_rows(T* y, float* rstd, const T* x, const W* weight,
                                               int64_t c, float eps) {
  const T* ahead = x + kAhead * c;
  RowSum sum[R];
  for (int k = 0; k < R; ++k) sum[k] = no_sum();
  int64_t i = 0;
  for (; i + 32 <= c; i += 32) {
#pragma GCC unroll 2
    for (int k = 0; k < R; ++k) {
      const Pair v = load32(x + k * c + i);
      prefetch(ahead + k * c + i);
      if constexpr (sizeof(T) == sizeof(float)) prefetch(ahead + k * c + i + 16);
      sum[k].add32(v.a * v.a, v.b * v.b);
    }
  }
  for (; i < c; i += 16) {
    const int64_t r = c - i < 16 ? c - i : 16;
    for (int k = 0; k < R; ++k) {
      const V v = load_lanes(x + k * c + i, r);
      sum[k].add_rest(v * v, r);
    }
  }
  V s[R];
  for (int k = 0; k < R; ++k) {
    rstd[k] = 1.0f / __builtin_sqrtf(sum[k].total() / static_cast<float>(c) + eps);
    s[k] = set1(rstd[k]);
  }
  i = 0;
  for (; i + 32 <= c; i += 32) {
    const V wa = rms_weight<kOffset>(weight + i, 16), wb = rms_weight<kOffset>(weight + i + 16, 16);
#pragma GCC unroll 2
    for (int k = 0; k < R; ++k) {
      const Pair v = load32(x + k * c + i);
      put32<kStream>(y + k * c + i, v.a * s[k] * wa, v.b * s[k] * wb);
    }
  }
  for (; i < c; i += 16) {
    const int64_t r = c - i < 16 ? c - i : 16;
    const V w = rms_weight<kOffset>(weight + i, r);
    for (int k = 0; k < R; ++k)
      put<kStream>(y + k * c + i, load_lanes(x + k * c + i, r) * s[k] * w, r);
  }
}

template <bool kStream, bool kOffset, class T, class W>
void rms_forward_all(T* y, float* rstd, const T* x, const W* weight, int64_t rows, int64_t c,
                     float eps) {
  int64_t i = 0;
  for (; i + 2 <= rows; i += 2)
    rms_forward_rows<kStream, kOffset, 2>(y + i * c, rstd + i, x + i * c, weight, c, eps);
  for (; i < rows; ++i)
    rms_forward_rows<kStream, kOffset, 1>(y + i * c, rstd + i, x + i * c, weight, c, eps);
}

// A row of floats that is the weight, made once for all rows where it is near.
template <class W>
inline const float* rms_weights(float* to, const W* weight, bool unit_offset, int64_t c) {
  if (!unit_offset) return widened(to, weight, c);
  each16(c, [=](int64_t i, int64_t r) { store_lanes(to + i, rms_weight<true>(weight + i, r), r); });
  return to;
}

template <class T, class W>
void rms_forward(T* y, float* rstd, const T* x, const W* weight, bool unit_offset, int64_t rows,
                 int64_t c, float eps, bool past_caches) {
  if (rows >= kRowsToWiden && c <= kNear && (unit_offset || sizeof(W) < sizeof(float))) {
    alignas(64) float near[kNear];
    const float* w = rms_weights(near, weight, unit_offset, c);
    const auto all = past_caches ? rms_forward_all<true, false, T, float>
                                 : rms_forward_all<false, false, T, float>;
    return all(y, rstd, x, w, rows, c, eps);
  }
  const auto all =
      past_caches
          ? (unit_offset ? rms_forward_all<true, true, T, W> : rms_forward_all<true, false, T, W>)
          : (unit_offset ? rms_forward_all<false, true, T, W>
                         : rms_forward_all<false, false, T, W>);
  all(y, rstd, x, weight, rows, c, eps);
}

// One pass over dy and x for the sum of the row and for those of the weight, a second one for dx.
// The first only reads dy: dx may lie on it.
template <bool kStream, bool kOffset, class T, class W>
__attribute__((flatten)) void rms_backward_row(T* dx, bool add_dx, float* dweight, const T* dy,
                                               const T* x, const W* weight, float rstd, int64_t c) {
  constexpr int64_t kRows = kAheadBackward<T>;
  const V s = set1(rstd);
  RowSum sum = no_sum();
  const auto term = [=](int64_t i, int64_t r) {
    const V d = load_lanes(dy + i, r), xhat = load_lanes(x + i, r) * s;
    if (dweight) store_lanes(dweight + i, load_lanes(dweight + i, r) + d * xhat, r);
    return d * rms_weight<kOffset>(weight + i, r) * xhat;
  };
  const auto call_near = [=](int64_t i) {
    prefetch(dy + kRows * c + i);
    prefetch(x + kRows * c + i);
    if (add_dx) prefetch(dx + kRows * c + i);
  };
  int64_t i = 0;
  for (; i + 32 <= c; i += 32) {
    call_near(i);
    if constexpr (sizeof(T) == sizeof(float)) call_near(i + 16);
    const V first = term(i, 16);
    sum.add32(first, term(i + 16, 16));
  }
  for (; i < c; i += 16) {
    const int64_t r = c - i < 16 ? c - i : 16;
    sum.add_rest(term(i, r), r);
  }
  const V mean = set1(sum.total() / static_cast<float>(c));
  const auto value = [=](int64_t at, int64_t r) {
    const V xhat = load_lanes(x + at, r) * s;
    const V g = load_lanes(dy + at, r) * rms_weight<kOffset>(weight + at, r);
    const V v = s * (g - xhat * mean);
    return add_dx ? load_lanes(dx + at, r) + v : v;
  };
  i = 0;
  for (; i + 32 <= c; i += 32) {
    const V first = value(i, 16);
    put32<kStream>(dx + i, first, value(i + 16, 16));
  }
  for (; i < c; i += 16) {
    const int64_t r = c - i < 16 ? c - i : 16;
    put<kStream>(dx + i, value(i, r), r);
  }
}

template <class T, class W>
void rms_backward(T* dx, bool add_dx, float* dweight, const T* dy, const T* x, const W* weight,
                  bool unit_offset, const float* rstd, int64_t rows, int64_t c, bool past_caches) {
  const auto all = [=](auto row, const auto* w) {
    for (int64_t i = 0; i < rows; ++i)
      row(dx + i * c, add_dx, dweight, dy + i * c, x + i * c, w, rstd[i], c);
  };
  if (rows >= kRowsToWiden && c <= kNear && (unit_offset || sizeof(W) < sizeof(float))) {
    alignas(64) float near[kNear];
    const float* w = rms_weights(near, weight, unit_offset, c);
    return past_caches ? all(rms_backward_row<true, false, T, float>, w)
                       : all(rms_backward_row<false, false, T, float>, w);
  }
  if (past_caches)
    return unit_offset ? all(rms_backward_row<true, true, T, W>, weight)
                       : all(rms_backward_row<true, false, T, W>, weight);
  return unit_offset ? all(rms_backward_row<false, true, T, W>, weight)
                     : all(rms_backward_row<false, false, T, W>, weight);
}
