#include "tools/cli/waiting.h"

#include <unistd.h>

#include <cstdlib>
#include <initializer_list>

namespace snug {

void wait_briefly(char** argv) {
  for (const char* name : {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"})
    if (std::getenv(name) != nullptr) return;
  if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0) {
    // By its name, which is what lists of processes show.
    char path[4096] = {};
    if (readlink("/proc/self/exe", path, sizeof path - 1) > 0) execv(path, argv);
    execv("/proc/self/exe", argv);
  }
}

}  // namespace snug
