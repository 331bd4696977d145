// Eight floats at a time, and sums of rows whose order is written down: four accumulators of eight
// lanes, taken in turn, then folded in a fixed tree. The order depends on the length alone, so a
// sum has the same bits on every run, and its rounding error grows with n / 32 instead of n.
// Storage types convert on the way in and out.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/core/dtype.h"

namespace snug {

using F32x8 = float __attribute__((vector_size(32)));
using U32x8 = uint32_t __attribute__((vector_size(32)));
using U16x8 = uint16_t __attribute__((vector_size(16)));
using F64x4 = double __attribute__((vector_size(32)));

inline F32x8 splat8(float x) {
  return F32x8{x, x, x, x, x, x, x, x};
}

inline F32x8 load8(const float* p) {
  F32x8 v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline F32x8 load8(const bf16* p) {
  U16x8 u;
  std::memcpy(&u, p, sizeof(u));
  const U32x8 wide = __builtin_convertvector(u, U32x8) << 16;
  return reinterpret_cast<F32x8>(wide);
}
inline F32x8 load8(const f16* p) {
  F32x8 v;
  for (int i = 0; i < 8; ++i) v[i] = to_f32(p[i]);
  return v;
}

// The first r < 8 elements; zeros behind them.
template <class T>
F32x8 load_part(const T* p, int64_t r) {
  float v[8] = {};
  for (int64_t i = 0; i < r; ++i) v[i] = to_f32(p[i]);
  return load8(v);
}

// Zeroes the lanes from r on.
inline F32x8 first_lanes(F32x8 v, int64_t r) {
  for (int64_t i = r; i < 8; ++i) v[i] = 0.0f;
  return v;
}

inline float fold(F32x8 v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
inline double fold(F64x4 v) {
  return (v[0] + v[2]) + (v[1] + v[3]);
}

// Sum of f(i, r) over i = 0, 8, 16 ... below n. f gives eight terms from element i on; r is how
// many of them count: 8, or n % 8 at the end, where f may give anything in the lanes from r on.
template <class F>
float sum_lanes(int64_t n, F&& f) {
  F32x8 a = {}, b = {}, c = {}, d = {};
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    a += f(i, 8);
    b += f(i + 8, 8);
    c += f(i + 16, 8);
    d += f(i + 24, 8);
  }
  for (; i + 8 <= n; i += 8) a += f(i, 8);
  if (i < n) b += first_lanes(f(i, n - i), n - i);
  return fold((a + b) + (c + d));
}

// load8 where r is 8, load_part otherwise.
template <class T>
F32x8 load_lanes(const T* p, int64_t r) {
  return r == 8 ? load8(p) : load_part(p, r);
}

}  // namespace snug
