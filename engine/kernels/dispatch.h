// From a dtype known at run time to a type known at compile time.
#pragma once

#include "engine/core/error.h"
#include "engine/core/view.h"

namespace snug {

// Calls f(T{}) with T = float, bf16 or f16, as x says. Any other dtype is an error (unsupported)
// that names the argument.
//   dispatch_float(x, "x", [&](auto tag) { using T = decltype(tag); run<T>(x); });
template <class F>
void dispatch_float(const View& x, const char* argument, F&& f) {
  if (x.dtype == DType::f32) {
    f(float{});
  } else if (x.dtype == DType::bf16) {
    f(bf16{});
  } else if (x.dtype == DType::f16) {
    f(f16{});
  } else {
    fail(ErrorCode::unsupported, std::string(argument) + " of dtype f32|bf16|f16", describe(x),
         "choose another precision");
  }
}

// What a parameter's gradient may be held in: f(T{}) with T = float or bf16. f16 has no range for a
// sum of gradients that are times the loss scale.
template <class F>
void dispatch_gradient(const View& x, const char* argument, F&& f) {
  if (x.dtype == DType::f32) {
    f(float{});
  } else if (x.dtype == DType::bf16) {
    f(bf16{});
  } else {
    fail(ErrorCode::unsupported, std::string(argument) + " of dtype f32|bf16", describe(x),
         "gradients in fp32, or allow=[bf16_gradients]");
  }
}

// Their errors alone: for an op that is the same for every type but for a loop at its end, which alone
// is then compiled for every one.
inline void expect_float(const View& x, const char* argument) {
  dispatch_float(x, argument, [](auto) {});
}
inline void expect_gradient(const View& x, const char* argument) {
  dispatch_gradient(x, argument, [](auto) {});
}

}  // namespace snug
