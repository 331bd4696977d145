// Rows of layer normalisation over the sixteen floats V; see layers/ops/row_loops.h.
#pragma once

template <class T, class W>
void norm_forward(T* y, float* mean_out, float* rstd_out, const T* x, const W* weight,
                  const W* bias, int64_t c, float eps) {
  const auto width = static_cast<float>(c);
  const float mean = sum_row(c, [=](int64_t i, int64_t r) { return load_lanes(x + i, r); }) / width;
  const V m = set1(mean);
  const float square = sum_row(c, [=](int64_t i, int64_t r) {
    const V d = load_lanes(x + i, r) - m;
    return d * d;
  });
  const float rstd = 1.0f / __builtin_sqrtf(square / width + eps);
  *mean_out = mean;
  *rstd_out = rstd;
  const V s = set1(rstd);
  const auto scaled = [=](int64_t i, int64_t r) {
    return (load_lanes(x + i, r) - m) * s * load_lanes(weight + i, r);
  };
  if (bias)
    each16(c, [=](int64_t i, int64_t r) {
      store_lanes(y + i, scaled(i, r) + load_lanes(bias + i, r), r);
    });
  else
    each16(c, [=](int64_t i, int64_t r) { store_lanes(y + i, scaled(i, r), r); });
}

// One pass over dy and x for the two sums of the row and for those of the parameters, a second one,
// from the first-level cache, for dx. The first only reads dy: dx may lie on it.
template <class T, class W>
void norm_backward(T* dx, bool add_dx, float* dweight, float* dbias, const T* dy, const T* x,
                   const W* weight, float mean, float rstd, int64_t c) {
  const V m = set1(mean), s = set1(rstd);
  RowSum g_sum, gx_sum;
  struct Terms {
    V g, gx;
  };
  const auto terms = [=](int64_t i, int64_t r) -> Terms {
    const V d = load_lanes(dy + i, r), xhat = (load_lanes(x + i, r) - m) * s;
    if (dweight) store_lanes(dweight + i, load_lanes(dweight + i, r) + d * xhat, r);
    if (dbias) store_lanes(dbias + i, load_lanes(dbias + i, r) + d, r);
    const V g = d * load_lanes(weight + i, r);
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
  const auto value = [=](int64_t j, int64_t r) {
    const V xhat = (load_lanes(x + j, r) - m) * s;
    return s * ((load_lanes(dy + j, r) * load_lanes(weight + j, r) - g_mean) - xhat * gx_mean);
  };
  if (add_dx)
    each16(c, [=](int64_t j, int64_t r) {
      store_lanes(dx + j, load_lanes(dx + j, r) + value(j, r), r);
    });
  else
    each16(c, [=](int64_t j, int64_t r) { store_lanes(dx + j, value(j, r), r); });
}
