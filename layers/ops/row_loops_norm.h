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

// Backward of floats, of which so many rows of three tensors would not stay in the first-level
// cache: 1 row, up to a third faster than 4.
template <class T>
constexpr int64_t kAheadBackward = sizeof(T) == sizeof(float) ? 1 : kAhead;

// Forward takes rows of 16 bits two at a time where they are of whole lines and near: a sum is a
// chain of additions in a fixed order, and theirs run side by side: 76 ns a row of 768 where one
// alone takes 104. Four: as good, but 4 % slower where memory is slow. Floats are bound by memory
// alone, and backward of two rows reads too many streams at once: slower together.
constexpr int kTogether = 2;
template <class T>
inline bool rows_together(int64_t c) {
  return sizeof(T) < sizeof(float) && c % 32 == 0 && c <= 1024;
}

// With sixteen registers of half a V, 32 columns at once of what backward sums spill. One V after
// the other, a row of 768 from the first-level cache takes 260 ns on Zen 3, not 339; of bf16 335,
// not 404. With 32 registers that would be 6 more tests and branches a turn: there both at once.
constexpr bool kOneByOne = kRegisters <= 16;
// There floats are not kept for the second pass either: making them again costs less than the
// stores.
template <class T>
constexpr bool kKeepsBackward = !(kOneByOne && sizeof(T) == sizeof(float));

// f(i, r) and, from kept on, g(i, r).
template <class F, class G>
inline void each16_near(int64_t n, int64_t kept, F&& f, G&& g) {
  const int64_t near = n < kept ? n : kept;
  each16(near, f);
  if (near < n) each16(n - near, [&](int64_t i, int64_t r) { g(near + i, r); });
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

// forward_row of kTogether rows.
template <bool kStream, class T, class W>
void forward_rows(T* y, float* mean, float* rstd, const T* x, const W* weight, const W* bias,
                  int64_t c, float eps) {
  constexpr int R = kTogether;
  const auto width = static_cast<float>(c);
  const T* ahead = x + kAhead * c;
  RowSum sum[R];
  V m[R];
#pragma GCC unroll 2
  for (int k = 0; k < R; ++k) sum[k] = no_sum();
  for (int64_t i = 0; i < c; i += 32) {
#pragma GCC unroll 2
    for (int k = 0; k < R; ++k) {
      const Pair v = load32(x + k * c + i);
      sum[k].add32(v.a, v.b);
    }
  }
#pragma GCC unroll 2
  for (int k = 0; k < R; ++k) {
    mean[k] = sum[k].total() / width;
    m[k] = set1(mean[k]);
    sum[k] = no_sum();
  }
  for (int64_t i = 0; i < c; i += 32) {
#pragma GCC unroll 2
    for (int k = 0; k < R; ++k) {
      prefetch(ahead + R * i + 32 * k);
      const Pair v = load32(x + k * c + i);
      const V a = v.a - m[k], b = v.b - m[k];
      sum[k].add32(a * a, b * b);
    }
  }
#pragma GCC unroll 2
  for (int k = 0; k < R; ++k) rstd[k] = 1.0f / __builtin_sqrtf(sum[k].total() / width + eps);
  for (int k = 0; k < R; ++k) {
    const V shift = set1(mean[k]), s = set1(rstd[k]);
    for (int64_t i = 0; i < c; i += 32) {
      const Pair v = load32(x + k * c + i), w = load32(weight + i);
      V a = (v.a - shift) * s * w.a, b = (v.b - shift) * s * w.b;
      if (bias) {
        const Pair more = load32(bias + i);
        a = a + more.a;
        b = b + more.b;
      }
      put32<kStream>(y + k * c + i, a, b);
    }
  }
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
  int64_t i = 0;
  if (rows_together<T>(c)) {
    const auto some = past_caches ? forward_rows<true, T, W> : forward_rows<false, T, W>;
    for (; i + kTogether <= rows; i += kTogether)
      some(y + i * c, mean + i, rstd + i, x + i * c, weight, bias, c, eps);
  }
  for (; i < rows; ++i) row(y + i * c, mean + i, rstd + i, x + i * c, weight, bias, c, eps);
}

// One pass over dy and x for the two sums of the row and for those of the parameters, a second one
// for dx. The first only reads dy: dx may lie on it.
template <bool kStream, class T, class W>
void backward_row(T* dx, bool add_dx, float* dweight, float* dbias, const T* dy, const T* x,
                  const W* weight, float mean, float rstd, int64_t c) {
  alignas(64) float near_g[kNear + 16], near_xhat[kNear + 16];
  const V m = set1(mean), s = set1(rstd);
  RowSum g_sum = no_sum(), gx_sum = no_sum();
  const auto call_near = [=](int64_t i) {
    prefetch(dy + kAheadBackward<T> * c + i);
    prefetch(x + kAheadBackward<T> * c + i);
    if (add_dx) prefetch(dx + kAheadBackward<T> * c + i);
  };
  const auto one_by_one = [=, &near_g, &near_xhat](int64_t k, V& g_lanes, V& gx_lanes) {
    const V d = load(dy + k), xhat = (load(x + k) - m) * s, g = d * load(weight + k);
    if (dweight) store(dweight + k, load(dweight + k) + d * xhat);
    if (dbias) store(dbias + k, load(dbias + k) + d);
    if (kKeepsBackward<T> && k < kNear) {
      store(near_g + k, g);
      store(near_xhat + k, xhat);
    }
    g_lanes = g_lanes + g;
    gx_lanes = gx_lanes + g * xhat;
  };
  int64_t i = 0;
  for (; i + 32 <= c; i += 32) {
    call_near(i);
    if constexpr (sizeof(T) == sizeof(float)) call_near(i + 16);
    if constexpr (kOneByOne) {
      one_by_one(i, g_sum.ab, gx_sum.ab);
      one_by_one(i + 16, g_sum.cd, gx_sum.cd);
    } else {
      const Pair d = load32(dy + i), v = load32(x + i), w = load32(weight + i);
      const Pair xhat = {(v.a - m) * s, (v.b - m) * s}, g = {d.a * w.a, d.b * w.b};
      if (dweight) {
        const Pair sum = load32(dweight + i);
        store32(dweight + i, sum.a + d.a * xhat.a, sum.b + d.b * xhat.b);
      }
      if (dbias) {
        const Pair sum = load32(dbias + i);
        store32(dbias + i, sum.a + d.a, sum.b + d.b);
      }
      if (i < kNear) {
        store32(near_g + i, g.a, g.b);
        store32(near_xhat + i, xhat.a, xhat.b);
      }
      g_sum.add32(g.a, g.b);
      gx_sum.add32(g.a * xhat.a, g.b * xhat.b);
    }
  }
  for (; i < c; i += 16) {
    const int64_t r = c - i < 16 ? c - i : 16;
    const V d = load_lanes(dy + i, r), xhat = (load_lanes(x + i, r) - m) * s;
    if (dweight) store_lanes(dweight + i, load_lanes(dweight + i, r) + d * xhat, r);
    if (dbias) store_lanes(dbias + i, load_lanes(dbias + i, r) + d, r);
    const V g = d * load_lanes(weight + i, r);
    if (kKeepsBackward<T> && i < kNear) {
      store(near_g + i, g);
      store(near_xhat + i, xhat);
    }
    g_sum.add_rest(g, r);
    gx_sum.add_rest(g * xhat, r);
  }
  const auto width = static_cast<float>(c);
  const V g_mean = set1(g_sum.total() / width), gx_mean = set1(gx_sum.total() / width);
  const auto value = [=](V g, V xhat) { return s * ((g - g_mean) - xhat * gx_mean); };
  int64_t j = 0;
  for (; kKeepsBackward<T> && j + 32 <= c && j < kNear; j += 32) {
    const Pair g = load32(near_g + j), xhat = load32(near_xhat + j);
    V a = value(g.a, xhat.a), b = value(g.b, xhat.b);
    if (add_dx) {
      const Pair before = load32(dx + j);
      a = before.a + a;
      b = before.b + b;
    }
    put32<kStream>(dx + j, a, b);
  }
  const auto write = [=](V v, int64_t at, int64_t r) {
    put<kStream>(dx + at, add_dx ? load_lanes(dx + at, r) + v : v, r);
  };
  each16_near(
      c - j, kKeepsBackward<T> ? kNear - j : 0,
      [=, &near_g, &near_xhat](int64_t k, int64_t r) {
        write(value(load(near_g + j + k), load(near_xhat + j + k)), j + k, r);
      },
      [=](int64_t k, int64_t r) {
        const V xhat = (load_lanes(x + j + k, r) - m) * s;
        const V g = load_lanes(dy + j + k, r) * load_lanes(weight + j + k, r);
        write(value(g, xhat), j + k, r);
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
