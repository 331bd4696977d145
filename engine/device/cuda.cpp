#include "engine/device/cuda.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/nvml.h"

namespace snug {
namespace {

std::string version(int v) {
  return fmt::format("{}.{}", v / 1000, v % 1000 / 10);
}

}  // namespace

std::string describe(const CudaFacts& f) {
  return fmt::format("{}, compute capability {}.{}, {} SMs, {}, CUDA driver {}, runtime {}", f.name,
                     f.major, f.minor, f.multiprocessors, human_bytes(f.total_bytes),
                     version(f.driver), version(f.runtime));
}

bool cuda_sync_check() {
  static const bool wanted = [] {
    const char* value = std::getenv("SNUG_SYNC_CHECK");
    return value != nullptr && std::string(value) == "1";
  }();
  return wanted;
}

bool cuda_kernels_fit(const std::string& architectures, int major, int minor) {
  std::istringstream in(architectures);
  std::string one;
  int last = 0;  // which alone is there as PTX too
  while (std::getline(in, one, ',')) {
    const int a = std::atoi(one.c_str());
    last = a;
    if (a / 10 == major && a % 10 <= minor) return true;
  }
  return last > 0 && last <= 10 * major + minor;
}

void refuse_no_cuda_build() {
  fail(ErrorCode::unsupported, "a build with the place cuda", "one without it",
       "install the CUDA Toolkit and configure with -DSNUG_CUDA=ON, or use device=cpu");
}

void refuse_cuda_driver(int driver, int runtime) {
  fail(ErrorCode::unsupported,
       fmt::format("a driver for NVIDIA GPUs that serves CUDA {}", version(runtime)),
       driver == 0 ? std::string("no driver") : fmt::format("one for CUDA {}", version(driver)),
       "install or update the driver (`nvidia-smi` names it), or use device=cpu");
}

void refuse_cuda_device(int index, int count) {
  fail(ErrorCode::usage, fmt::format("the GPU cuda:{}", index),
       count == 0 ? std::string("no GPU that this process may use")
                  : fmt::format("GPUs cuda:0 to cuda:{}", count - 1),
       "look at `nvidia-smi -L` and CUDA_VISIBLE_DEVICES, or use device=cpu");
}

void refuse_cuda_architecture(const CudaFacts& facts, const std::string& architectures) {
  fail(ErrorCode::unsupported,
       fmt::format("a GPU that the kernels of this build run on (compiled for {})", architectures),
       fmt::format("{} of compute capability {}.{}", facts.name, facts.major, facts.minor),
       facts.major < 8 ? std::string("use a GPU of compute capability 8.0 or later, or device=cpu")
                       : fmt::format("configure with -DSNUG_CUDA_ARCHITECTURES={}{}", facts.major,
                                     facts.minor));
}

void refuse_cuda_memory(const CudaFacts& facts, int64_t bytes, int64_t free_bytes,
                        int64_t held_bytes) {
  // Another process there is what most often is in the way.
  std::string others;
  if (const auto now = gpu_now(facts.pci))
    for (const GpuProcess& p : now->processes)
      if (p.pid != getpid())
        others += fmt::format("{}process {}{}{}", others.empty() ? " (" : ", ", p.pid,
                              p.name.empty() ? "" : " " + p.name,
                              p.bytes < 0 ? "" : " with " + human_bytes(p.bytes));
  if (!others.empty()) others += ")";
  fail(ErrorCode::out_of_memory,
       fmt::format("{} free on {} for the arena", human_bytes(bytes), facts.name),
       fmt::format("{} of {}; this process holds {} there, and {} are with other processes and the "
                   "driver{}",
                   human_bytes(free_bytes), human_bytes(facts.total_bytes), human_bytes(held_bytes),
                   human_bytes(facts.total_bytes - free_bytes - held_bytes), others),
       "stop what `nvidia-smi` lists beside it, or lower memory=");
}

}  // namespace snug
