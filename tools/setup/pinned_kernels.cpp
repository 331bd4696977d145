#include "tools/setup/pinned_kernels.h"

#include <fmt/format.h>

#include "engine/blas/matmul_cpu.h"
#include "engine/core/error.h"
#include "tools/config/keys.h"
#include "tools/planner/plan.h"

namespace snug {

KernelTable pinned_kernels(const std::vector<KernelChoice>& pinned, const std::string& folder,
                           const std::vector<std::string>& allow) {
  KernelTable table;
  for (KernelChoice choice : pinned) {
    const MatmulKernel wanted = choice.kernel;
    // The library of a GPU is no choice of ours: its version is held by ComputesOn.
    if (wanted == MatmulKernel::cublaslt) continue;
    // The kernels of one family give the same bits: any of them will do.
    for (const MatmulKernel k : {MatmulKernel::avx512, MatmulKernel::avx2, MatmulKernel::reference})
      if (!matmul_available(choice.kernel) && same_bits(k, wanted) && matmul_available(k))
        choice.kernel = k;
    if (!matmul_available(choice.kernel))
      fail(ErrorCode::usage,
           fmt::format("a CPU with the kernel {} for {} products, as {} pins it", to_string(wanted),
                       to_string(choice.a), folder),
           fmt::format("instructions {}, without it", plan_instruction_set()),
           allow_text(allow, {"kernels"}) +
               " to go on with this machine's own, which changes the last bits, or resume on a "
               "machine like the one before");
    table.set(choice);
  }
  return table;
}

}  // namespace snug
