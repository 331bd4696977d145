// The kernels that compute products, as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/blas/kernel_table.h"

namespace snug {

// [{class, dtype, kernel}], as in plan.json and checkpoints.
nlohmann::json choices_json(const std::vector<KernelChoice>& choices);
// Throws data naming `where`.
std::vector<KernelChoice> parse_choices(const nlohmann::json& list, const std::string& where);
// A dtype of products; a kernel that a plan may name, ours or cuBLASLt's. Both throw data naming
// `where`.
DType parse_float(std::string_view name, const std::string& where);
MatmulKernel parse_planned_kernel(const std::string& name, const std::string& where);

}  // namespace snug
