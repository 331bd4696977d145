// NVML as far as engine/device/nvml.cpp asks it, of one made-up GPU: the code that talks to it then
// runs where there is no driver. Built as libnvidia-ml.so.1 in a folder of its own. FAKE_NVML=idle:
// a GPU that does nothing, of which every figure but the memory is 0; FAKE_NVML=silent: one that
// tells no figure but the memory.
#include <cstdlib>
#include <cstring>

extern "C" {

using Handle = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilisation {
  unsigned int gpu, memory;
};
struct Process {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
};

constexpr unsigned long long kGiB = 1ull << 30;
constexpr int kNotFound = 6, kNotSupported = 3;
static int the_gpu;

static bool is(const char* word) {
  const char* const said = std::getenv("FAKE_NVML");
  return said && std::strcmp(said, word) == 0;
}
static int tell(unsigned* to, unsigned figure) {
  if (is("silent")) return kNotSupported;
  *to = is("idle") ? 0 : figure;
  return 0;
}

int nvmlInit_v2() {
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci, Handle* gpu) {
  if (std::strcmp(pci, "0000:3B:00.0") != 0) return kNotFound;
  *gpu = &the_gpu;
  return 0;
}
int nvmlDeviceGetMemoryInfo(Handle, Memory* m) {
  *m = {80 * kGiB, 50 * kGiB, 30 * kGiB};
  return 0;
}
int nvmlDeviceGetUtilizationRates(Handle, Utilisation* u) {
  return tell(&u->gpu, 87) + tell(&u->memory, 40);
}
int nvmlDeviceGetPowerUsage(Handle, unsigned* milliwatts) {
  return tell(milliwatts, 512400);
}
int nvmlDeviceGetEnforcedPowerLimit(Handle, unsigned* milliwatts) {
  return tell(milliwatts, 700000);
}
int nvmlDeviceGetClockInfo(Handle, unsigned which, unsigned* mhz) {
  return tell(mhz, which == 1 ? 1755 : 2619);
}
int nvmlSystemGetProcessName(unsigned pid, char* name, unsigned room) {
  if (pid != 4242) return kNotFound;
  std::strncpy(name, "/usr/bin/python3", room);
  return 0;
}
// As on a card that does not tell.
int nvmlDeviceGetTemperature(Handle, unsigned, unsigned* celsius) {
  return is("idle") ? tell(celsius, 0) : kNotSupported;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle, unsigned* count, Process* list) {
  list[0] = {4242, 20 * kGiB, 0, 0};
  list[1] = {4243, ~0ull, 0, 0};
  *count = 2;
  return 0;
}
}
