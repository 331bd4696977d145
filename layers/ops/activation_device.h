// The formulas of layers/ops/activation.h for kernels: what activation and gated_activation share.
#pragma once

#include "engine/simt/simt.h"
#include "layers/ops/activation_dispatch.h"

namespace snug {
inline namespace SIMT_SIDE {

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + simt::exp(-x));
}

// sigmoid and its derivative. Written with e^-|x|, the derivative keeps its digits where the
// sigmoid is nearly 1 and 1 - sigmoid has lost them, which x^3 then magnifies.
struct Sigmoid {
  float value, slope;
};
__device__ inline Sigmoid sigmoid_and_slope(float x) {
  const float e = simt::exp(-simt::abs(x)), r = 1.0f / (1.0f + e);
  return {x < 0.0f ? e * r : r, e * (r * r)};
}

// No overflow inside, and a NaN stays one.
__device__ inline float at_least(float x, float low) {
  return x < low ? low : x;
}
__device__ inline float at_most(float x, float high) {
  return x > high ? high : x;
}

struct GeluTanh {
  static constexpr float kTwice = 2.0f * 0.7978845608028654f, kCube = 0.044715f;
  __device__ static float inner(float z) { return kTwice * (z + kCube * z * z * z); }
  __device__ static float value(float x) {
    const float low = at_least(x, -30.0f);
    return low * sigmoid(inner(at_most(low, 30.0f)));
  }
  __device__ static float slope(float x) {
    const float z = at_most(at_least(x, -30.0f), 30.0f);
    const Sigmoid s = sigmoid_and_slope(inner(z));
    return s.value + z * s.slope * (kTwice * (1.0f + 3.0f * kCube * z * z));
  }
};

struct GeluErf {
  __device__ static float half(float x) {
    return 0.5f * (1.0f + simt::erf(x * 0.7071067811865476f));
  }
  __device__ static float value(float x) {
    const float z = at_least(x, -30.0f);
    return z * half(z);
  }
  __device__ static float slope(float x) {
    const float z = at_most(at_least(x, -30.0f), 30.0f);
    return half(z) + z * (0.3989422804014327f * simt::exp(-0.5f * z * z));
  }
};

struct Relu {
  __device__ static float value(float x) { return x < 0.0f ? 0.0f : x; }
  __device__ static float slope(float x) { return x > 0.0f ? 1.0f : (x <= 0.0f ? 0.0f : x); }
};

struct Silu {
  __device__ static float value(float x) {
    const float z = at_least(x, -88.0f);
    return z * sigmoid(z);
  }
  __device__ static float slope(float x) {
    const float z = at_most(at_least(x, -88.0f), 88.0f);
    const Sigmoid s = sigmoid_and_slope(z);
    return s.value + z * s.slope;
  }
};

struct Tanh {
  __device__ static float value(float x) { return simt::tanh(x); }
  __device__ static float slope(float x) {
    const float t = simt::tanh(x);
    return (1.0f - t) * (1.0f + t);
  }
};

template <class F>
void dispatch_activation_kernel(Activation kind, F&& f) {
  dispatch_activation<GeluTanh, GeluErf, Relu, Silu, Tanh>(kind, f);
}

}  // namespace SIMT_SIDE
}  // namespace snug
