#include "engine/core/precision.h"

#include <string>

#include "engine/core/error.h"

namespace snug {

Precision parse_precision(std::string_view name) {
  if (name == "fp32" || name == "float32") return {};
  if (name == "bf16" || name == "bfloat16") return {.compute = DType::bf16};
  if (name == "fp16" || name == "float16") return {.compute = DType::f16};
  if (name == "tf32")
    fail(ErrorCode::unsupported, "precision fp32, bf16 or fp16",
         "precision: tf32, a mode of the matrix units of GPUs that CPUs do not have",
         "precision=fp32");
  fail(ErrorCode::usage, "precision fp32, bf16 or fp16", "precision: " + std::string(name),
       "precision=bf16");
}

const char* to_string(const Precision& p) {
  if (p.compute == DType::f32) return "fp32";
  if (p.compute == DType::bf16) return "bf16";
  if (p.compute == DType::f16) return "fp16";
  fail(ErrorCode::internal, "a precision preset", to_string(p.compute), "add its name");
}

}  // namespace snug
