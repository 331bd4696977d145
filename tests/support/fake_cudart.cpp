#include "tests/support/fake_cudart.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

namespace snug::test {

FakeGpu& fake_gpu() {
  static FakeGpu gpu;
  return gpu;
}

}  // namespace snug::test

using snug::test::fake_gpu;

namespace {

using Work = std::vector<std::function<void()>>;

struct Stream {
  Work* capture = nullptr;
};
struct Event {
  double at = 0;
};

std::map<uintptr_t, size_t> allocations;
cudaError_t last = cudaSuccess;  // seen by the runtime

cudaError_t done(cudaError_t error = cudaSuccess) {
  if (fake_gpu().sticky != 0) error = static_cast<cudaError_t>(fake_gpu().sticky);
  if (error != cudaSuccess) last = error;
  return error;
}

Stream* of(cudaStream_t s) {
  return reinterpret_cast<Stream*>(s);
}

void give(cudaStream_t s, std::function<void()> work) {
  if (of(s)->capture != nullptr)
    of(s)->capture->push_back(std::move(work));
  else
    work();
}

CUresult address_range(CUdeviceptr* start, size_t* bytes, CUdeviceptr at) {
  auto found = allocations.upper_bound(static_cast<uintptr_t>(at));
  if (found == allocations.begin()) return CUDA_ERROR_INVALID_VALUE;
  --found;
  *start = found->first;
  *bytes = found->second;
  return CUDA_SUCCESS;
}

}  // namespace

void snug::test::reset_fake_gpu() {
  fake_gpu() = {};
  last = cudaSuccess;
}

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  return done(last);
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorMadeUp";
}
const char* cudaGetErrorString(cudaError_t) {
  return "a made-up error";
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = fake_gpu().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake_gpu().count;
  return fake_gpu().count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  std::strcpy(p->name, "Made-up GPU");
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 100;
  p->totalGlobalMem = static_cast<size_t>(fake_gpu().total);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int, int) {
  std::strcpy(id, "0000:99:00.0");
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return done();
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = reinterpret_cast<void*>(&address_range);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *total = static_cast<size_t>(fake_gpu().total);
  *available = static_cast<size_t>(fake_gpu().total - fake_gpu().taken);
  return done();
}
cudaError_t cudaMalloc(void** to, size_t bytes) {
  const auto granule = static_cast<size_t>(fake_gpu().granule);
  const size_t size = (bytes + granule - 1) / granule * granule;
  *to = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  allocations[reinterpret_cast<uintptr_t>(*to)] = size;
  fake_gpu().taken += static_cast<int64_t>(size);
  return done();
}
cudaError_t cudaFree(void* p) {
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(p));
  if (found == allocations.end()) return done(cudaErrorInvalidValue);
  fake_gpu().taken -= static_cast<int64_t>(found->second);
  allocations.erase(found);
  std::free(p);
  return done();
}
cudaError_t cudaHostRegister(void*, size_t, unsigned) {
  return done(fake_gpu().fail_register ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaHostUnregister(void*) {
  return done();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t s) {
  give(s, [=] {
    std::memcpy(to, from, bytes);
    fake_gpu().microseconds += static_cast<double>(bytes);
  });
  return done();
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t s) {
  give(s, [=] {
    std::memset(to, value, bytes);
    fake_gpu().microseconds += static_cast<double>(bytes);
  });
  return done();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned) {
  ++fake_gpu().live_streams;
  *made = reinterpret_cast<cudaStream_t>(new Stream);
  return done();
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  --fake_gpu().live_streams;
  delete of(s);
  return done();
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return done();
}
cudaError_t cudaDeviceSynchronize() {
  ++fake_gpu().synchronisations;
  return done();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned) {
  ++fake_gpu().live_events;
  *made = reinterpret_cast<cudaEvent_t>(new Event);
  return done();
}
cudaError_t cudaEventCreate(cudaEvent_t* made) {
  return cudaEventCreateWithFlags(made, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  --fake_gpu().live_events;
  delete reinterpret_cast<Event*>(e);
  return done();
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  give(s, [=] { reinterpret_cast<Event*>(e)->at = fake_gpu().microseconds; });
  return done();
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t a, cudaEvent_t b) {
  *milliseconds = static_cast<float>(
      1e-3 * (reinterpret_cast<Event*>(b)->at - reinterpret_cast<Event*>(a)->at));
  return done();
}
cudaError_t cudaEventQuery(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return done();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  of(s)->capture = new Work;
  return done();
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(of(s)->capture);
  of(s)->capture = nullptr;
  return done();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Work*>(graph);
  return done();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new Work(*reinterpret_cast<Work*>(graph)));
  ++fake_gpu().live_graphs;
  fake_gpu().taken += fake_gpu().graph_bytes;
  return done();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<Work*>(graph);
  --fake_gpu().live_graphs;
  fake_gpu().taken -= fake_gpu().graph_bytes;
  return done();
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return done();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const auto& work : *reinterpret_cast<Work*>(graph)) work();
  return done();
}

}  // extern "C"
