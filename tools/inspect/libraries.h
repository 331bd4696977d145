// What the processor can do and which libraries are there.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace snug {

std::vector<std::string>
cpu_features();  // "AVX2", "FMA", "AVX-512", "AVX-512-BF16", "AMX-BF16", ...
// Linked ones with their versions, and compression libraries if the system has them.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace snug
