// Rows of the head's softmax over the sixteen floats V; see layers/ops/row_loops.h. The
// exponential is computed twice, once for the sum and once for the gradient: writing it down in
// between would double the traffic of a row that no cache holds.
#pragma once

float max_loop(const float* z, int64_t n) {
  V top[4] = {set1(z[0]), set1(z[0]), set1(z[0]), set1(z[0])};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64)
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) top[k] = max_of(load(z + i + 16 * k), top[k]);
  for (; i + 16 <= n; i += 16) top[0] = max_of(load(z + i), top[0]);
  float lanes[16];
  store(lanes, max_of(max_of(top[0], top[1]), max_of(top[2], top[3])));
  float best = lanes[0];
  for (int k = 1; k < 16; ++k) best = lanes[k] > best ? lanes[k] : best;
  for (; i < n; ++i) best = z[i] > best ? z[i] : best;
  return best;
}

double exp_sum_loop(const float* z, int64_t n, float shift, const float* next) {
  const V s = set1(shift);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kSumColumns) {
    const int64_t count = n - begin < kSumColumns ? n - begin : kSumColumns;
    const float* part = z + begin;
    V sum = set1(0.0f);
    each16(count, [&](int64_t i, int64_t r) {
      if (next) __builtin_prefetch(next + begin + i, 0, 2);
      const V e = exp_of(load_lanes(part + i, r) - s);
      sum = sum + (r == 16 ? e : keep_lanes((1u << r) - 1, e));
    });
    float lanes[16];
    store(lanes, sum);
    double block = 0;
    for (const float lane : lanes) block += static_cast<double>(lane);
    total += block;
  }
  return total;
}

template <class T>
void softmax_gradient_loop(T* dz, const float* z, int64_t columns, int64_t Vp, float shift,
                           float factor, int64_t target, float gradient) {
  const V s = set1(shift), f = set1(factor);
  float hit[16];
  T rounded[16];
  store(hit, exp_of(set1(z[target]) - s) * f - set1(gradient));
  store(rounded, load(hit));
  each16(columns, [=](int64_t i, int64_t r) {
    store_lanes(dz + i, exp_of(load_lanes(z + i, r) - s) * f, r);
  });
  dz[target] = rounded[0];
  each16(Vp - columns, [=](int64_t i, int64_t r) { store_lanes(dz + columns + i, set1(0.0f), r); });
}
