// What a model folder holds beside what final/ of a run says of the run.
#pragma once

#include <string>
#include <vector>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {

inline std::vector<std::string> model_files(const std::string& folder) {
  std::vector<std::string> files = listing(folder);
  std::erase(files, "snug.json");
  return files;
}

}  // namespace snug::e2e
