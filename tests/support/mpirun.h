// mpirun of Open MPI, where it is installed, for tests with the label `mpi`.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

namespace snug::test {

// Where it is; empty: nowhere on PATH.
inline std::string find_mpirun() {
  const char* const path = std::getenv("PATH");
  std::string rest = path ? path : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string file = rest.substr(0, end) + "/mpirun";
    if (access(file.c_str(), X_OK) == 0) return file;
    rest.erase(0, end + 1);
  }
  return "";
}

#define NEEDS_MPIRUN()                                     \
  if (test::find_mpirun().empty())                         \
  GTEST_SKIP() << "no mpirun on PATH: openmpi-bin is not " \
                  "installed"

// mpirun of `size` ranks, whatever processors there are and whoever calls it.
inline std::vector<std::string> mpirun_words(int size, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {
      find_mpirun(), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
      "-n",          std::to_string(size)};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace snug::test
