#include "layers/ops/activation.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/math.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"

namespace snug {
namespace {

constexpr int64_t kGrain = 16 * 1024;  // elements a task

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

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return has;
}

template <class F>
void dispatch_kind(Activation kind, F&& f) {
  if (kind == Activation::gelu_tanh) {
    f(GeluTanh{});
  } else if (kind == Activation::gelu_erf) {
    f(GeluErf{});
  } else if (kind == Activation::relu) {
    f(Relu{});
  } else if (kind == Activation::silu) {
    f(Silu{});
  } else {
    fail(ErrorCode::unsupported, "activation gelu_tanh, gelu_erf, relu or silu",
         "number " + std::to_string(static_cast<int>(kind)), "choose one of these");
  }
}

int64_t flops_of(Activation kind) {
  return kind == Activation::relu ? 1 : 25;
}

void expect_like(const View& x, const char* argument, const View& y) {
  if (y.shape == x.shape && y.dtype == x.dtype) return;
  fail(ErrorCode::shape, std::string(argument) + " of the shape and dtype of x",
       describe(y) + ", where x is " + describe(x),
       "check that the weights and the config belong together");
}

}  // namespace

const char* to_string(Activation kind) {
  switch (kind) {
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::gelu_erf:
      return "gelu_erf";
    case Activation::relu:
      return "relu";
    case Activation::silu:
      return "silu";
  }
  return "?";
}

Activation parse_activation(std::string_view name) {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu_erf;
  if (name == "relu") return Activation::relu;
  if (name == "silu" || name == "swish") return Activation::silu;
  fail(ErrorCode::unsupported,
       "an activation function of gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu, silu, swish",
       fmt::format("\"{}\"", name), "use a model with one of these");
}

void activation_forward(Context& ctx, const View& y, const View& x, Activation kind) {
  expect_like(x, "y", y);
  dispatch_float(x, "x", [&](auto tag) {
    dispatch_kind(kind, [&](auto function) {
      using T = decltype(tag);
      using A = decltype(function);
      Op op(ctx, "activation_forward",
            {.flops = flops_of(kind) * x.elements(), .bytes = x.bytes() + y.bytes()});
      if (!op.run()) return;
      const auto loop = has_avx512() ? values_avx512<A, T> : values_avx2<A, T>;
      T* to = y.as<T>();
      const T* from = x.as<T>();
      parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
        loop(to + begin, from + begin, end - begin);
      });
    });
  });
}

void activation_backward(Context& ctx, const View& dx, const View& dy, const View& x,
                         Activation kind) {
  expect_like(x, "dx", dx);
  expect_like(x, "dy", dy);
  dispatch_float(x, "x", [&](auto tag) {
    dispatch_kind(kind, [&](auto function) {
      using T = decltype(tag);
      using A = decltype(function);
      Op op(ctx, "activation_backward",
            {.flops = (flops_of(kind) + 6) * x.elements(), .bytes = 3 * x.bytes()});
      if (!op.run()) return;
      const auto loop = has_avx512() ? slopes_avx512<A, T> : slopes_avx2<A, T>;
      T* to = dx.as<T>();
      const T* dfrom = dy.as<T>();
      const T* from = x.as<T>();
      parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
        loop(to + begin, dfrom + begin, from + begin, end - begin);
      });
    });
  });
}

}  // namespace snug
