// From an activation known at run time to its formulas, for the CPU's and the kernels'.
#pragma once

#include <string>

#include "engine/core/error.h"
#include "layers/ops/activation.h"

namespace snug {

// Calls f with an object of the type of `kind`; any other number is an error (unsupported).
template <class GeluTanh, class GeluErf, class Relu, class Silu, class Tanh, class F>
void dispatch_activation(Activation kind, F&& f) {
  if (kind == Activation::gelu_tanh) {
    f(GeluTanh{});
  } else if (kind == Activation::gelu_erf) {
    f(GeluErf{});
  } else if (kind == Activation::relu) {
    f(Relu{});
  } else if (kind == Activation::silu) {
    f(Silu{});
  } else if (kind == Activation::tanh) {
    f(Tanh{});
  } else {
    fail(ErrorCode::unsupported, "activation gelu_tanh, gelu_erf, relu, silu or tanh",
         "number " + std::to_string(static_cast<int>(kind)), "choose one of these");
  }
}

inline int64_t flops_of(Activation kind) {
  return kind == Activation::relu ? 1 : 25;
}

}  // namespace snug
