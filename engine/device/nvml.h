// NVML, NVIDIA's library that watches GPUs, loaded at run time: a machine without it has a report
// with fewer numbers, and no error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug {

struct GpuProcess {
  int64_t pid = 0;     // as the machine counts, which a container may do otherwise
  int64_t bytes = -1;  // -1: not told
  std::string name;    // of its program, without folders; empty: not told
};

// What NVML says of a GPU now; -1 what it does not say.
struct GpuNow {
  int64_t total_bytes = -1, used_bytes = -1, free_bytes = -1;
  int utilisation = -1;  // percent of the last moments in which a kernel ran
  double watts = -1, watts_limit = -1;
  int sm_mhz = -1, memory_mhz = -1, celsius = -1;
  std::vector<GpuProcess> processes;  // that compute there
};

// `pci`: bus id as the driver writes it, "0000:3B:00.0". Nothing if there is no NVML
// (libnvidia-ml.so.1) or it does not know the GPU.
std::optional<GpuNow> gpu_now(const std::string& pci);

// "12.3 GiB of 140 GiB used, 87 % busy, 512 W"
std::string describe(const GpuNow& now);

}  // namespace snug
