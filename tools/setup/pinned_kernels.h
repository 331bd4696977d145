// The kernels that a checkpoint or a plan names, on this machine.
#pragma once

#include <string>
#include <vector>

#include "engine/blas/kernel_table.h"

namespace snug {

// The kernels a checkpoint names, or others that give the same bits. Throws usage if this machine
// has none for a product, and names the permission that unpins them beside those given.
KernelTable pinned_kernels(const std::vector<KernelChoice>& pinned, const std::string& folder,
                           const std::vector<std::string>& allow);

}  // namespace snug
