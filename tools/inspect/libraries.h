// What the processor can do and which libraries are there.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace snug {

std::vector<std::string>
cpu_features();  // "AVX2", "FMA", "AVX-512", "AVX-512-BF16", "AMX-BF16", ...
// Those that are linked, with their versions.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace snug
