#include "tools/inspect/libraries.h"

#include <cpuid.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/core/openmp.h"
#include "engine/core/units.h"
#include "engine/device/device.h"
#include "engine/device/nvml.h"
#include "tools/inspect/machine.h"

namespace snug {
namespace {

// A library that stays open only as long as this object.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  explicit operator bool() const { return handle_ != nullptr; }
  template <class F>
  F* get(const char* name) const {
    return handle_ ? reinterpret_cast<F*>(dlsym(handle_, name)) : nullptr;
  }

 private:
  void* handle_;
};

// Bits of edx in leaf 7 (Intel SDM, CPUID): 22 AMX-BF16, 24 AMX-TILE, 25 AMX-INT8.
unsigned leaf7_edx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) ? d : 0;
}

}  // namespace

std::vector<std::string> cpu_features() {
  std::vector<std::string> out;
  const auto note = [&](bool found, const char* name) {
    if (found) out.emplace_back(name);
  };
  note(__builtin_cpu_supports("avx2"), "AVX2");
  note(__builtin_cpu_supports("fma"), "FMA");
  note(__builtin_cpu_supports("f16c"), "F16C");
  note(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl"),
       "AVX-512");
  note(__builtin_cpu_supports("avx512vnni"), "AVX-512-VNNI");
  note(__builtin_cpu_supports("avx512bf16"), "AVX-512-BF16");
  note(leaf7_edx() >> 22 & 1u, "AMX-BF16");
  note(leaf7_edx() >> 25 & 1u, "AMX-INT8");
  return out;
}

std::vector<std::pair<std::string, std::string>> library_versions() {
  std::vector<std::pair<std::string, std::string>> out;
#if defined(_OPENMP)
  // The month of the specification.
  out.emplace_back("OpenMP", fmt::format("{} ({} threads)", _OPENMP, omp_get_max_threads()));
#endif
  out.emplace_back("fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
                                      FMT_VERSION % 100));
  out.emplace_back("zlib", zlibVersion());
  out.emplace_back("zstd", ZSTD_versionString());
  return out;
}

constexpr const char* kWhere =
    kCudaBuilt
        ? "this build trains there with device=cuda"
        : "this build trains on the CPU (device=emu runs its kernels for GPUs in the emulator); "
          "one made with the CUDA Toolkit has device=cuda";

// The driver's own interface (cuda.h), by name: no header and no toolkit is needed.
Finding examine_cuda() {
  Finding f{.name = "cuda"};
  f.facts = {{"driver", nullptr}, {"devices", nlohmann::ordered_json::array()}};
  const Library cuda("libcuda.so.1");
  auto* const init = cuda.get<int(unsigned)>("cuInit");
  if (!init) {
    f.text = fmt::format("no driver (libcuda.so.1); {}", kWhere);
    return f;
  }
  int code = init(0), version = 0, count = 0;
  if (auto* const get = cuda.get<int(int*)>("cuDriverGetVersion")) get(&version);
  const std::string driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  f.facts["driver"] = driver;
  auto* const devices = cuda.get<int(int*)>("cuDeviceGetCount");
  if (code == 0 && devices) code = devices(&count);
  if (code != 0) {
    f.level = Level::note;
    f.text = fmt::format("driver for CUDA {}, which gives error {}; {}", driver, code, kWhere);
    f.advice = "nvidia-smi says more; a driver and a kernel module of different versions do this";
    return f;
  }
  f.text = fmt::format("driver for CUDA {}, {} device{}", driver, count, count == 1 ? "" : "s");
  auto* const name_of = cuda.get<int(char*, int, int)>("cuDeviceGetName");
  auto* const memory_of = cuda.get<int(size_t*, int)>("cuDeviceTotalMem_v2");
  auto* const pci_of = cuda.get<int(char*, int, int)>("cuDeviceGetPCIBusId");
  auto* const attribute = cuda.get<int(int*, int, int)>("cuDeviceGetAttribute");
  for (int i = 0; i < count && name_of && memory_of && attribute; ++i) {
    char name[256] = {};
    size_t bytes = 0;
    int major = 0, minor = 0;
    name_of(name, sizeof name - 1, i);
    memory_of(&bytes, i);
    attribute(&major, 75, i);  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
    attribute(&minor, 76, i);
    f.facts["devices"].push_back({{"name", name},
                                  {"total_bytes", bytes},
                                  {"compute_capability", fmt::format("{}.{}", major, minor)}});
    f.text += fmt::format("; {}: {}, {}, compute capability {}.{}", i, name,
                          human_bytes(static_cast<int64_t>(bytes)), major, minor);
    char pci[32] = {};
    if (pci_of && pci_of(pci, sizeof pci - 1, i) == 0)
      if (const auto now = gpu_now(pci)) {
        auto& facts = f.facts["devices"].back();
        facts["pci"] = pci;
        facts["used_bytes"] = now->used_bytes;
        facts["free_bytes"] = now->free_bytes;
        // Not every GPU says these.
        facts["utilisation"] =
            now->utilisation < 0 ? nlohmann::json() : nlohmann::json(now->utilisation);
        facts["watts"] = now->watts < 0 ? nlohmann::json() : nlohmann::json(now->watts);
        f.text += ", " + describe(*now);
      }
  }
  f.text += fmt::format("; {}", kWhere);
  return f;
}

}  // namespace snug
