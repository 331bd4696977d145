// What computes the numbers of a run on a GPU beside our kernels: the model of GPU and the versions
// of the libraries. Another of them may change the last bits, so plans and checkpoints name them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/blas/matmul_cuda.h"
#include "engine/device/cuda.h"
#include "engine/memory/context.h"

namespace snug {

struct ComputesOn {
  std::string gpu;       // "NVIDIA H200, compute capability 9.0"; empty: no GPU, or a described one
  std::string cublaslt;  // its version; "none": our kernel multiplies
  std::string cudnn;     // its version; "none": it does not compute attention
  std::vector<CublasLtChoice> algorithms;  // measured with matmul_autotune, by problem

  bool defined() const { return !gpu.empty(); }
  friend bool operator==(const ComputesOn&, const ComputesOn&) = default;
};

// Of this machine's GPU, for such settings. Loads the libraries.
ComputesOn computes_on(const CudaFacts& facts, const Settings& settings);
// "cuBLASLt 13.1.0, cuDNN 9.12.0" as a plan says it.
std::string describe(const ComputesOn& on);

// What differs, in words for "expected" and "found"; the algorithms do not count.
struct ComputesOnDifference {
  std::string what, before, now;  // "cuBLASLt", "13.1.0", "12.9.1"
};
std::optional<ComputesOnDifference> difference(const ComputesOn& before, const ComputesOn& now);

// null where there is no GPU.
nlohmann::json computes_on_json(const ComputesOn& on);
// Absent or null: none. Throws data naming `where`.
ComputesOn parse_computes_on(const nlohmann::json& parent, const std::string& where);

}  // namespace snug
