// Which dtype each kind of value has. Data, not a build option.
#pragma once

#include <string_view>

#include "engine/core/dtype.h"

namespace snug {

struct Precision {
  DType compute = DType::f32;  // weights as layers see them, residual stream, activations
  DType master = DType::f32;   // weights as the optimizer sees them
  DType gradient = DType::f32;
  DType state = DType::f32;

  // Activations of few exponent bits: gradients are computed times a factor (optim/loss_scaling.h).
  bool loss_scaling() const { return compute == DType::f16; }
  // A separate master copy exists only if it differs from the compute weights.
  bool separate_master() const { return master != compute; }
};

// "fp32", "bf16" or "fp16" (aliases float32, bfloat16, float16). Throws usage, or unsupported for a
// known name that is not built.
Precision parse_precision(std::string_view name);
// The name of the preset: parse_precision's inverse.
const char* to_string(const Precision& precision);

}  // namespace snug
