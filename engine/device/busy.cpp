#include "engine/device/busy.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace snug {

double waited_seconds() {
  double sum = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "schedstat");
    double ran = 0, waited = 0;
    if (file >> ran >> waited) sum += waited;
  }
  return 1e-9 * sum;
}

}  // namespace snug
