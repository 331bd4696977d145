// The formulas of the activations and the loops over them: one implementation for the op and for
// the products that end in an activation (layers/ops/linear.cpp).
#pragma once

#include <algorithm>

#include "engine/core/dtype.h"
#include "engine/core/isa.h"
#include "engine/core/math.h"
#include "layers/ops/activation.h"
#include "layers/ops/activation_dispatch.h"

namespace snug {

// max(x, low). Below -88 all three smooth functions and their slopes are 0 in float; staying above
// it keeps a large negative x from multiplying what is left of a zero. A NaN passes through.
inline float at_least(float x, float low) {
  return std::max(x, low);
}

inline float sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

// f and its derivative, straight-line code so that the loops over them become vector code.

// (1 + tanh(u)) / 2 is sigmoid(2 u), which takes one division less and keeps small values exact.
struct GeluTanh {
  static constexpr float kTwice = 2.0f * 0.7978845608028654f, kCube = 0.044715f;
  static float half(float z) { return sigmoid(kTwice * (z + kCube * z * z * z)); }
  // half is 1 long before 30, and the cube of a large x must not overflow.
  static float value(float x) {
    const float low = at_least(x, -30.0f), z = std::min(low, 30.0f);
    return low * half(z);
  }
  static float slope(float x) {
    const float z = std::min(at_least(x, -30.0f), 30.0f), s = half(z);
    return s + z * (s * (1.0f - s)) * (kTwice * (1.0f + 3.0f * kCube * z * z));
  }
};

struct GeluErf {
  static float half(float x) { return 0.5f * (1.0f + fast_erf(x * 0.7071067811865476f)); }
  static float value(float x) {
    const float z = at_least(x, -30.0f);
    return z * half(z);
  }
  static float slope(float x) {
    return half(x) + x * (0.3989422804014327f * fast_exp(-0.5f * x * x));
  }
};

struct Relu {
  // Written so that a NaN stays one.
  static float value(float x) { return x < 0.0f ? 0.0f : x; }
  static float slope(float x) { return x > 0.0f ? 1.0f : (x <= 0.0f ? 0.0f : x); }
};

struct Silu {
  static float value(float x) {
    const float z = at_least(x, -88.0f);
    return z * sigmoid(z);
  }
  static float slope(float x) {
    const float z = at_least(x, -88.0f), s = sigmoid(z);
    return s * (1.0f + z * (1.0f - s));
  }
};

// The loops, always inlined into a function per instruction set. The arithmetic is plain IEEE
// without contraction, so both give the same bits.
template <class A, class T>
[[gnu::always_inline]] inline void value_loop(T* y, const T* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = from_f32<T>(A::value(to_f32(x[i])));
}
template <class A, class T>
[[gnu::always_inline]] inline void slope_loop(T* dx, const T* dy, const T* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = from_f32<T>(to_f32(dy[i]) * A::slope(to_f32(x[i])));
}

#define SNUG_AVX512 gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

template <class A, class T>
void values_avx2(T* y, const T* x, int64_t n) {
  value_loop<A>(y, x, n);
}
template <class A, class T>
[[SNUG_AVX512]] void values_avx512(T* y, const T* x, int64_t n) {
  value_loop<A>(y, x, n);
}
template <class A, class T>
void slopes_avx2(T* dx, const T* dy, const T* x, int64_t n) {
  slope_loop<A>(dx, dy, x, n);
}
template <class A, class T>
[[SNUG_AVX512]] void slopes_avx512(T* dx, const T* dy, const T* x, int64_t n) {
  slope_loop<A>(dx, dy, x, n);
}

template <class F>
void dispatch_kind(Activation kind, F&& f) {
  dispatch_activation<GeluTanh, GeluErf, Relu, Silu>(kind, f);
}

inline int64_t flops_of(Activation kind) {
  return kind == Activation::relu ? 1 : 25;
}

}  // namespace snug
