// A driver without a GPU that takes any kernel it is given, so that cuDNN can choose and compile
// kernels for a GPU it is only told of. Built as libcuda.so.1. It refuses everything else.
extern "C" {

constexpr int kNoDevice = 100;

int cuInit(unsigned) {
  return kNoDevice;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "there is no GPU";
  return 0;
}
int cuLibraryLoadData(void** library) {
  *library = library;
  return 0;
}
int cuLibraryGetKernel(void** kernel) {
  *kernel = kernel;
  return 0;
}
int cuLibraryUnload(void*) {
  return 0;
}

// Looked for by name before any is called.
#define REFUSED(name) \
  int name() {        \
    return kNoDevice; \
  }
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetLimit)
REFUSED(cuCtxPopCurrent)
REFUSED(cuCtxPushCurrent)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetCount)
REFUSED(cuGetErrorName)
REFUSED(cuKernelGetAttribute)
REFUSED(cuKernelSetAttribute)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLaunchKernelEx)
REFUSED(cuLibraryLoadFromFile)
REFUSED(cuLinkAddData)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate)
REFUSED(cuLinkDestroy)
REFUSED(cuOccupancyMaxPotentialClusterSize)
REFUSED(cuStreamGetCtx)
#undef REFUSED
}
