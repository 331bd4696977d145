// The few functions of the driver that `snug doctor` asks, of one made-up GPU. Built as
// libcuda.so.1 beside fake_nvml.cpp.
#include <cstdio>

extern "C" {

int cuInit(unsigned) {
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
int cuDeviceGetName(char* name, int room, int) {
  std::snprintf(name, static_cast<unsigned>(room), "Made-up GPU");
  return 0;
}
int cuDeviceTotalMem_v2(unsigned long* bytes, int) {
  *bytes = 80ul << 30;
  return 0;
}
int cuDeviceGetAttribute(int* value, int which, int) {
  *value = which == 75 ? 9 : 0;
  return 0;
}
int cuDeviceGetPCIBusId(char* pci, int room, int) {
  std::snprintf(pci, static_cast<unsigned>(room), "0000:3B:00.0");
  return 0;
}
}
