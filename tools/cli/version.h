// What was built and what this machine has.
#pragma once

#include <string>

namespace snug {

// Lines of `name: value`: version, compiler, instruction sets of the CPU, libraries, threads.
std::string version_text();

}  // namespace snug
