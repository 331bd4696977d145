#include "engine/core/precision.h"

#include <string>

#include "engine/core/error.h"

namespace snug {

Precision parse_precision(std::string_view name) {
  if (name == "fp32" || name == "float32") return {};
  if (name == "bf16" || name == "bfloat16") return {.compute = DType::bf16};
  if (name == "fp16" || name == "float16" || name == "tf32")
    fail(ErrorCode::unsupported, "precision fp32 or bf16", "precision: " + std::string(name),
         "precision=bf16");
  fail(ErrorCode::usage, "precision fp32 or bf16", "precision: " + std::string(name),
       "precision=bf16");
}

}  // namespace snug
