// Rows of layer normalisation over the sixteen floats V; see layers/ops/row_loops.h.
#pragma once

// Values that a later pass over the row wants again are kept as floats on the stack, up to this
// many columns; beyond it they are made again, to the same bits. Widening bf16 twice costs more
// than a store and a load in the first-level cache.
constexpr int64_t kNear = 4096;

// Rows ahead that are called near while the ones here are in the cache: reading took turns with
// arithmetic, for a row is as long as what the CPU looks ahead. 2 rows: as good; none: a third
// slower.
constexpr int64_t kAhead = 4;

// f(i, r) and, from kept on, g(i, r).
template <class F, class G>
inline void each16_near(int64_t n, int64_t kept, F&& f, G&& g) {
  const int64_t near = n < kept ? n : kept;
  each16(near, f);
  if (near < n) each16(n - near, [&](int64_t i, int64_t r) { g(near + i, r); });
}

// Past the caches, where a row is of whole lines, or not.
template <bool kStream, class T>
inline void put(T* p, V x, int64_t r) {
  if constexpr (kStream)
    stream(p, x);
  else
    store_lanes(p, x, r);
}

template <bool kStream, class T, class W>
void forward_row(T* y, float* mean_out, float* rstd_out, const T* x, const W* weight, const W* bias,
                 int64_t c, float eps) {
  constexpr int64_t kKept = sizeof(T) == sizeof(float) ? 0 : kNear;  // x is floats already
  alignas(64) float near[kKept + 16];
  const auto width = static_cast<float>(c);
  const float mean = sum_row(c,
                             [=, &near](int64_t i, int64_t r) {
                               const V v = load_lanes(x + i, r);
                               if (i < kKept) store(near + i, v);
                               return v;
                             }) /
                     width;
  const V m = set1(mean);
  const float square = sum_row(c,
                               [=, &near](int64_t i, int64_t r) {
                                 prefetch(x + kAhead * c + i);
                                 const V d =
                                     (i < kKept ? load(near + i) : load_lanes(x + i, r)) - m;
                                 return d * d;
                               }) /
                       width;
  const float rstd = 1.0f / __builtin_sqrtf(square + eps);
  *mean_out = mean;
  *rstd_out = rstd;
  const V s = set1(rstd);
  const auto write = [=](V v, int64_t i, int64_t r) {
    const V scaled = (v - m) * s * load_lanes(weight + i, r);
    put<kStream>(y + i, bias ? scaled + load_lanes(bias + i, r) : scaled, r);
  };
  each16_near(
      c, kKept, [=, &near](int64_t i, int64_t r) { write(load(near + i), i, r); },
      [=](int64_t i, int64_t r) { write(load_lanes(x + i, r), i, r); });
}

// Widens n parameters for many rows; null stays null.
template <class W>
inline const float* widened(float* to, const W* from, int64_t n) {
  if (!from) return nullptr;
  each16(n, [=](int64_t i, int64_t r) { store_lanes(to + i, load_lanes(from + i, r), r); });
  return to;
}
constexpr int64_t kRowsToWiden = 8;

template <class T, class W>
void norm_forward(T* y, float* mean, float* rstd, const T* x, const W* weight, const W* bias,
                  int64_t rows, int64_t c, float eps, bool past_caches) {
  if constexpr (sizeof(W) < sizeof(float))
    if (rows >= kRowsToWiden && c <= kNear) {
      alignas(64) float near_weight[kNear], near_bias[kNear];
      return norm_forward<T, float>(y, mean, rstd, x, widened(near_weight, weight, c),
                                    widened(near_bias, bias, c), rows, c, eps, past_caches);
    }
  const auto row = past_caches ? forward_row<true, T, W> : forward_row<false, T, W>;
  for (int64_t i = 0; i < rows; ++i)
    row(y + i * c, mean + i, rstd + i, x + i * c, weight, bias, c, eps);
}

// One pass over dy and x for the two sums of the row and for those of the parameters, a second one
// for dx. The first only reads dy: dx may lie on it.
template <bool kStream, class T, class W>
void backward_row(T* dx, bool add_dx, float* dweight, float* dbias, const T* dy, const T* x,
                  const W* weight, float mean, float rstd, int64_t c) {
  alignas(64) float near_g[kNear + 16], near_xhat[kNear + 16];
  const V m = set1(mean), s = set1(rstd);
  RowSum g_sum = no_sum(), gx_sum = no_sum();
  struct Terms {
    V g, gx;
  };
  const auto terms = [=, &near_g, &near_xhat](int64_t i, int64_t r) -> Terms {
    prefetch(dy + kAhead * c + i);
    prefetch(x + kAhead * c + i);
    if (add_dx) prefetch(dx + kAhead * c + i);
    const V d = load_lanes(dy + i, r), xhat = (load_lanes(x + i, r) - m) * s;
    if (dweight) store_lanes(dweight + i, load_lanes(dweight + i, r) + d * xhat, r);
    if (dbias) store_lanes(dbias + i, load_lanes(dbias + i, r) + d, r);
    const V g = d * load_lanes(weight + i, r);
    if (i < kNear) {
      store(near_g + i, g);
      store(near_xhat + i, xhat);
    }
    return {g, g * xhat};
  };
  int64_t i = 0;
  for (; i + 32 <= c; i += 32) {
    const Terms a = terms(i, 16), b = terms(i + 16, 16);
    g_sum.add32(a.g, b.g);
    gx_sum.add32(a.gx, b.gx);
  }
  for (; i < c; i += 16) {
    const int64_t r = c - i < 16 ? c - i : 16;
    const Terms t = terms(i, r);
    g_sum.add_rest(t.g, r);
    gx_sum.add_rest(t.gx, r);
  }
  const auto width = static_cast<float>(c);
  const V g_mean = set1(g_sum.total() / width), gx_mean = set1(gx_sum.total() / width);
  const auto write = [=](V g, V xhat, int64_t j, int64_t r) {
    const V value = s * ((g - g_mean) - xhat * gx_mean);
    put<kStream>(dx + j, add_dx ? load_lanes(dx + j, r) + value : value, r);
  };
  each16_near(
      c, kNear,
      [=, &near_g, &near_xhat](int64_t j, int64_t r) {
        write(load(near_g + j), load(near_xhat + j), j, r);
      },
      [=](int64_t j, int64_t r) {
        const V xhat = (load_lanes(x + j, r) - m) * s;
        write(load_lanes(dy + j, r) * load_lanes(weight + j, r), xhat, j, r);
      });
}

template <class T, class W>
void norm_backward(T* dx, bool add_dx, float* dweight, float* dbias, const T* dy, const T* x,
                   const W* weight, const float* mean, const float* rstd, int64_t rows, int64_t c,
                   bool past_caches) {
  if constexpr (sizeof(W) < sizeof(float))
    if (rows >= kRowsToWiden && c <= kNear) {
      alignas(64) float near_weight[kNear];
      return norm_backward<T, float>(dx, add_dx, dweight, dbias, dy, x,
                                     widened(near_weight, weight, c), mean, rstd, rows, c,
                                     past_caches);
    }
  const auto row = past_caches ? backward_row<true, T, W> : backward_row<false, T, W>;
  for (int64_t i = 0; i < rows; ++i)
    row(dx + i * c, add_dx, dweight, dbias, dy + i * c, x + i * c, weight, mean[i], rstd[i], c);
}
