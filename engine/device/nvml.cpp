#include "engine/device/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "engine/core/units.h"

namespace snug {
namespace {

// The interface as NVIDIA's NVML API reference states it; there is no header to build with.
using Handle = struct nvmlDevice_st*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilisation {
  unsigned int gpu, memory;
};
struct Process {  // nvmlProcessInfo_t as of *_v3
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
};
constexpr int kSuccess = 0;
constexpr unsigned kClockSm = 1, kClockMemory = 2, kCore = 0;
constexpr unsigned kMostProcesses = 64;

// Loaded once and kept: its threads outlive a dlclose.
class Nvml {
 public:
  static const Nvml& get() {
    static const Nvml nvml;
    return nvml;
  }
  bool usable() const { return usable_; }
  template <class F>
  F* find(const char* name) const {
    return library_ ? reinterpret_cast<F*>(dlsym(library_, name)) : nullptr;
  }

 private:
  Nvml() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    auto* const init = find<int()>("nvmlInit_v2");
    usable_ = init && init() == kSuccess;
  }
  void* library_ = nullptr;
  bool usable_ = false;
};

// The driver's word for it: in a container the numbers of other processes are not those of /proc.
std::string process_name(const Nvml& nvml, unsigned pid) {
  std::array<char, 256> name{};
  auto* const ask = nvml.find<int(unsigned, char*, unsigned)>("nvmlSystemGetProcessName");
  if (!ask || ask(pid, name.data(), name.size() - 1) != kSuccess) return "";
  const std::string path(name.data());
  return path.substr(path.find_last_of('/') + 1);
}

}  // namespace

std::optional<GpuNow> gpu_now(const std::string& pci) {
  const Nvml& nvml = Nvml::get();
  auto* const by_pci = nvml.find<int(const char*, Handle*)>("nvmlDeviceGetHandleByPciBusId_v2");
  Handle gpu = nullptr;
  if (!nvml.usable() || !by_pci || by_pci(pci.c_str(), &gpu) != kSuccess) return std::nullopt;
  GpuNow now;
  Memory memory{};
  auto* const memory_of = nvml.find<int(Handle, Memory*)>("nvmlDeviceGetMemoryInfo");
  if (memory_of && memory_of(gpu, &memory) == kSuccess) {
    now.total_bytes = static_cast<int64_t>(memory.total);
    now.free_bytes = static_cast<int64_t>(memory.free);
    now.used_bytes = static_cast<int64_t>(memory.used);
  }
  Utilisation busy{};
  auto* const busy_of = nvml.find<int(Handle, Utilisation*)>("nvmlDeviceGetUtilizationRates");
  if (busy_of && busy_of(gpu, &busy) == kSuccess) now.utilisation = static_cast<int>(busy.gpu);
  const auto milliwatts = [&](const char* name) {
    unsigned value = 0;
    auto* const ask = nvml.find<int(Handle, unsigned*)>(name);
    return ask && ask(gpu, &value) == kSuccess ? value / 1000.0 : -1.0;
  };
  now.watts = milliwatts("nvmlDeviceGetPowerUsage");
  now.watts_limit = milliwatts("nvmlDeviceGetEnforcedPowerLimit");
  const auto number = [&](const char* name, unsigned which) {
    unsigned value = 0;
    auto* const ask = nvml.find<int(Handle, unsigned, unsigned*)>(name);
    return ask && ask(gpu, which, &value) == kSuccess ? static_cast<int>(value) : -1;
  };
  now.sm_mhz = number("nvmlDeviceGetClockInfo", kClockSm);
  now.memory_mhz = number("nvmlDeviceGetClockInfo", kClockMemory);
  now.celsius = number("nvmlDeviceGetTemperature", kCore);
  std::array<Process, kMostProcesses> list{};
  unsigned count = kMostProcesses;
  auto* const processes_of =
      nvml.find<int(Handle, unsigned*, Process*)>("nvmlDeviceGetComputeRunningProcesses_v3");
  if (processes_of && processes_of(gpu, &count, list.data()) == kSuccess)
    for (unsigned i = 0; i < count && i < kMostProcesses; ++i)
      now.processes.push_back(
          {static_cast<int64_t>(list[i].pid),
           list[i].bytes == ~0ull ? int64_t{-1} : static_cast<int64_t>(list[i].bytes),
           process_name(nvml, list[i].pid)});
  return now;
}

std::string describe(const GpuNow& n) {
  std::string out = n.used_bytes < 0 ? std::string("memory not told")
                                     : fmt::format("{} of {} used", human_bytes(n.used_bytes),
                                                   human_bytes(n.total_bytes));
  if (n.utilisation >= 0) out += fmt::format(", {} % busy", n.utilisation);
  if (n.watts >= 0) out += fmt::format(", {:.0f} W", n.watts);
  if (n.watts >= 0 && n.watts_limit >= 0) out += fmt::format(" of {:.0f}", n.watts_limit);
  if (n.sm_mhz >= 0) out += fmt::format(", SM at {} MHz", n.sm_mhz);
  return out;
}

}  // namespace snug
