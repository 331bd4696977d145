#include "layers/ops/activation.h"

#include "engine/core/error.h"
#include "engine/core/math.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"

namespace snug {
namespace {

constexpr int64_t kGrain = 16 * 1024;  // elements a task

// f and its derivative, straight-line code so that the loops over them become vector code.
struct GeluTanh {
  static constexpr float kScale = 0.7978845608028654f, kCube = 0.044715f;
  // Beyond 30 tanh is 1 long since, and the cube of a large x must not overflow.
  static float bounded(float x) { return std::min(std::max(x, -30.0f), 30.0f); }
  static float tanh_of(float z) { return fast_tanh(kScale * (z + kCube * z * z * z)); }
  static float value(float x) { return 0.5f * x * (1.0f + tanh_of(bounded(x))); }
  static float slope(float x) {
    const float z = bounded(x), t = tanh_of(z);
    return 0.5f * (1.0f + t) + 0.5f * z * (1.0f - t * t) * (kScale * (1.0f + 3.0f * kCube * z * z));
  }
};

struct GeluErf {
  static float half(float x) { return 0.5f * (1.0f + fast_erf(x * 0.7071067811865476f)); }
  static float value(float x) { return x * half(x); }
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
  static float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }
  static float value(float x) { return x * sigmoid(x); }
  static float slope(float x) {
    const float s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
  }
};

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
       "\"" + std::string(name) + "\"", "use a model with one of these");
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
      T* to = y.as<T>();
      const T* from = x.as<T>();
      parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) to[i] = from_f32<T>(A::value(to_f32(from[i])));
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
      T* to = dx.as<T>();
      const T* dfrom = dy.as<T>();
      const T* from = x.as<T>();
      parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i)
          to[i] = from_f32<T>(to_f32(dfrom[i]) * A::slope(to_f32(from[i])));
      });
    });
  });
}

}  // namespace snug
