// NVML as far as engine/device/nvml.cpp asks it, of one made-up GPU: the code that talks to it then
// runs where there is no driver. Built as libnvidia-ml.so.1 in a folder of its own.
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
  *u = {87, 40};
  return 0;
}
int nvmlDeviceGetPowerUsage(Handle, unsigned* milliwatts) {
  *milliwatts = 512400;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(Handle, unsigned* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
int nvmlDeviceGetClockInfo(Handle, unsigned which, unsigned* mhz) {
  *mhz = which == 1 ? 1755 : 2619;
  return 0;
}
int nvmlSystemGetProcessName(unsigned pid, char* name, unsigned room) {
  if (pid != 4242) return kNotFound;
  std::strncpy(name, "/usr/bin/python3", room);
  return 0;
}
// As on a card that does not tell.
int nvmlDeviceGetTemperature(Handle, unsigned, unsigned*) {
  return kNotSupported;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle, unsigned* count, Process* list) {
  list[0] = {4242, 20 * kGiB, 0, 0};
  list[1] = {4243, ~0ull, 0, 0};
  *count = 2;
  return 0;
}
}
