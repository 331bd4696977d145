// Libraries of CUDA that a program loads when it first wants them, so that it starts where they are
// absent. They are where the toolkit is, or inside the wheels of a Python that somebody set up for
// other things; neither place is on the loader's path as a rule.
#pragma once

#include <string>
#include <vector>

namespace snug {

// Where `name`, as "libcublasLt.so.13", may be, in the order in which it is looked for: the name
// alone (the loader's path), then of these what is there: the toolkit ($CUDA_HOME, $CUDA_PATH,
// /usr/local/cuda), nvidia/*/lib of the Python environments ($VIRTUAL_ENV, $CONDA_PREFIX,
// $HOME/.local, /usr/local, /usr).
std::vector<std::string> cuda_library_places(const std::string& name);

// A handle of dlopen, or null. Where the environment has the variable, the file it names is the
// only one tried. `path` gets what was opened; `why` what the loader said, if nothing was.
void* open_cuda_library(const char* variable, const std::vector<std::string>& names,
                        std::string& path, std::string& why);

}  // namespace snug
