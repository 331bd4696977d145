// Every activation with its formula, for the tests of the ops that have one.
#pragma once

#include "layers/ops/activation.h"
#include "tests/support/reference/activation.h"

namespace snug::test {

inline constexpr Activation kKinds[] = {Activation::gelu_tanh, Activation::gelu_erf,
                                        Activation::relu, Activation::silu, Activation::tanh};

template <class T>
T reference(Activation kind, T x) {
  if (kind == Activation::gelu_tanh) return gelu_tanh_reference(x);
  if (kind == Activation::gelu_erf) return gelu_erf_reference(x);
  if (kind == Activation::relu) return relu_reference(x);
  if (kind == Activation::tanh) return tanh_reference(x);
  return silu_reference(x);
}

}  // namespace snug::test
