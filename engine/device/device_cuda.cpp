// The place cuda. One allocation for the arena and page-locked memory for the host's; three streams
// and events that are made at the start, so that a run makes none.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define SNUG_NVTX
#endif

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/beside.h"
#include "engine/device/cuda.h"

namespace snug {
namespace {

constexpr const char* kArchitectures = SNUG_CUDA_ARCHITECTURES;
constexpr int64_t kPage = 4096;

void check_call(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that passes is not seen twice
  fail(ErrorCode::device, std::string("the device to ") + what,
       std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error),
       "run with SNUG_SYNC_CHECK=1 to see which kernel made it, if one did");
}

// The driver's own words for the allocation a pointer lies in. The driver is asked through the
// runtime: a program that links its library would not start on a machine without it.
int64_t allocated_from(const std::byte* base) {
  using Ask = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  check_call(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, 12000,
                                              cudaEnableDefault, &result),
             "name its driver's functions");
#else
  check_call(cudaGetDriverEntryPoint("cuMemGetAddressRange", &found, cudaEnableDefault, &result),
             "name its driver's functions");
#endif
  CUdeviceptr start = 0;
  size_t bytes = 0;
  const auto at = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(base));
  if (result != cudaDriverEntryPointSuccess ||
      reinterpret_cast<Ask>(found)(&start, &bytes, at) != CUDA_SUCCESS)
    fail(ErrorCode::device, "the driver to report the arena's allocation", "no answer",
         "update the driver");
  return static_cast<int64_t>(start + bytes - at);
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int index) : host_(make_device(Place::cpu)), facts_(cuda_facts(index)) {
    check_call(cudaSetDevice(index), "begin work");
    index_ = index;
    check_call(cudaStreamCreateWithFlags(&beside_, cudaStreamNonBlocking), "make a stream");
    for (auto& s : streams_)
      check_call(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "make a stream");
    for (auto& events : events_)
      for (auto& e : events)
        check_call(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "make an event");
  }

  ~CudaDevice() override {
    cudaDeviceSynchronize();
    for (cudaGraphExec_t g : graphs_) cudaGraphExecDestroy(g);
    for (cudaEvent_t e : marks_) cudaEventDestroy(e);
    for (auto& events : events_)
      for (auto& e : events) cudaEventDestroy(e);
    for (auto& s : streams_) cudaStreamDestroy(s);
    cudaStreamDestroy(beside_);
  }

  Place place() const override { return Place::cuda; }

  std::byte* reserve(int64_t bytes, Residence residence) override {
    if (residence == Residence::host) {
      std::byte* base = host_->reserve(bytes, residence);
      pinned_base_ = base;
      return base;
    }
    const int64_t size = round_up(std::max<int64_t>(bytes, 1), kPage);
    const MemoryInfo memory = memory_info();
    void* p = nullptr;
    // What is free may lie in pieces: the allocation has the last word.
    if (size > memory.available_bytes || cudaMalloc(&p, static_cast<size_t>(size)) != cudaSuccess) {
      cudaGetLastError();
      refuse_cuda_memory(facts_, size, memory.available_bytes, held_);
    }
    held_ += size;
    return static_cast<std::byte*>(p);
  }

  void release(std::byte* base, int64_t bytes) noexcept override {
    if (base == pinned_base_) {
      if (registered_) cudaHostUnregister(base);
      registered_ = false;
      pinned_base_ = nullptr;
      return host_->release(base, bytes);
    }
    cudaFree(base);
    held_ -= round_up(std::max<int64_t>(bytes, 1), kPage);
  }

  // Memory of the device is backed once it is allocated. The host's is locked when all its pages
  // are there: page by page inside the lock would be one thread's work.
  void touch(std::byte* base, int64_t bytes, int threads) override {
    if (base != pinned_base_) {
      fill(base, 0, bytes, kCompute);
      synchronize();
      return check();
    }
    host_->touch(base, bytes, threads);
    const auto size = static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), kPage));
    const cudaError_t error = cudaHostRegister(base, size, cudaHostRegisterMapped);
    if (error != cudaSuccess) {
      cudaGetLastError();
      fail(ErrorCode::out_of_memory,
           "the system to lock " + human_bytes(bytes) + " of the host's memory",
           cudaGetErrorString(error), "offload less, or raise the limit (ulimit -l)");
    }
    registered_ = true;
  }

  int64_t resident(const std::byte* base, int64_t bytes) const override {
    if (base == pinned_base_) return host_->resident(base, bytes);
    // What the driver gave, should it be more than was asked for too.
    require(bytes > 0, "bytes of a reservation");
    return allocated_from(base);
  }

  // They are real whatever the mode, which says how a CPU plays at streams.
  void start_streams(StreamMode) override {
    synchronize();
    started_ = true;
  }

  void copy(void* to, const void* from, int64_t bytes, StreamId s) override {
    check_call(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream(s)),
               "copy");
  }
  void fill(void* to, uint8_t value, int64_t bytes, StreamId s) override {
    check_call(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), stream(s)), "fill memory");
  }

  // Which GPU a thread uses is the thread's own.
  void copy_beside(void* to, const void* from, int64_t bytes) {
    check_call(cudaSetDevice(index_), "work for another thread");
    check_call(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, beside_),
               "copy");
    check_call(cudaStreamSynchronize(beside_), "finish a copy");
  }

  // A stream uses its events in turn. One that is used again stands for more work of the same
  // stream, all of it issued before the wait: later than asked for, never too early.
  EventId record_event(StreamId s) override {
    const int64_t n = recorded_[static_cast<size_t>(s)]++;
    check_call(cudaEventRecord(event(s, n), stream(s)), "record an event");
    return n * kStreams + s;
  }
  bool done(EventId e) const {
    return cudaSetDevice(index_) == cudaSuccess &&
           cudaEventQuery(event(static_cast<StreamId>(e % kStreams), e / kStreams)) !=
               cudaErrorNotReady;
  }
  void wait_on_host(EventId e) override {
    check_call(cudaEventSynchronize(event(static_cast<StreamId>(e % kStreams), e / kStreams)),
               "wait for an event on the host");
  }
  void wait_event(StreamId s, EventId e) override {
    if (s == kHost) return wait_on_host(e);
    check_call(
        cudaStreamWaitEvent(stream(s), event(static_cast<StreamId>(e % kStreams), e / kStreams)),
        "wait for an event");
  }

  void synchronize() noexcept override {
    const cudaError_t error = cudaDeviceSynchronize();
    if (failed_ == cudaSuccess) failed_ = error;
  }
  void check() override {
    const cudaError_t error = failed_ != cudaSuccess ? failed_ : cudaPeekAtLastError();
    failed_ = cudaSuccess;
    check_call(error, "finish what it was given");
  }
  // Nothing can be waited for while a graph is captured, so not with SNUG_SYNC_CHECK.
  bool captures() const override { return !cuda_sync_check(); }
  void begin_capture() override {
    check_call(cudaStreamBeginCapture(stream(kCompute), cudaStreamCaptureModeThreadLocal),
               "capture a graph");
  }
  int end_capture() override {
    cudaGraph_t graph = nullptr;
    check_call(cudaStreamEndCapture(stream(kCompute), &graph), "end the capture of a graph");
    cudaGraphExec_t made = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&made, graph, 0);
    cudaGraphDestroy(graph);
    check_call(error, "make a graph of what was captured");
    graphs_.push_back(made);
    check_call(cudaGraphUpload(made, stream(kCompute)), "take a graph");
    return static_cast<int>(graphs_.size()) - 1;
  }
  void cancel_capture() noexcept override {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream(kCompute), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
    failed_ = cudaSuccess;  // of waiting meanwhile
  }
  void replay(int graph) override {
    check_call(cudaGraphLaunch(graphs_.at(static_cast<size_t>(graph)), stream(kCompute)),
               "run a graph");
  }
  bool has_marks() const override { return true; }
  void make_marks(int count) override {
    while (static_cast<int>(marks_.size()) < count) {
      cudaEvent_t made = nullptr;
      check_call(cudaEventCreate(&made), "make an event that tells times");
      marks_.push_back(made);
    }
  }
  // Ops end with one, where nothing can be thrown: check() says it.
  void mark(int number, StreamId s) override {
    const cudaError_t error = cudaEventRecord(marks_[static_cast<size_t>(number)], stream(s));
    if (failed_ == cudaSuccess) failed_ = error;
  }
  double mark_seconds(int number) const override {
    float milliseconds = 0;
    check_call(
        cudaEventElapsedTime(&milliseconds, marks_.at(0), marks_.at(static_cast<size_t>(number))),
        "tell the time between two events");
    return 1e-3 * static_cast<double>(milliseconds);
  }
#ifdef SNUG_NVTX
  // Next to nothing where no profiler listens: the header looks for one once.
  void begin_range(const char* name) override {
    nvtxRangePushA(name);
  }
  void end_range() noexcept override {
    nvtxRangePop();
  }
#endif
  void* native_stream(StreamId s) override {
    return stream(s);
  }

  MemoryInfo memory_info() const override {
    size_t available = 0, total = 0;
    check_call(cudaMemGetInfo(&available, &total), "report its memory");
    return {static_cast<int64_t>(total), static_cast<int64_t>(available)};
  }

 private:
  static constexpr int64_t kEvents = 128;

  // Before the streams start all work is in one order.
  cudaStream_t stream(StreamId s) const {
    return streams_[static_cast<size_t>(started_ ? s : kCompute)];
  }
  cudaEvent_t event(StreamId s, int64_t n) const {
    return events_[static_cast<size_t>(s)][static_cast<size_t>(n % kEvents)];
  }

  std::unique_ptr<Device> host_;
  CudaFacts facts_;
  std::array<cudaStream_t, kStreams> streams_{};
  std::array<std::array<cudaEvent_t, kEvents>, kStreams> events_{};
  std::array<int64_t, kStreams> recorded_{};
  std::vector<cudaGraphExec_t> graphs_;
  std::vector<cudaEvent_t> marks_;
  int index_ = 0;
  cudaStream_t beside_ = nullptr;
  bool started_ = false;
  cudaError_t failed_ = cudaSuccess;
  int64_t held_ = 0;
  std::byte* pinned_base_ = nullptr;
  bool registered_ = false;
};

}  // namespace

bool cuda_event_done(const Device& device, EventId event) {
  require(device.place() == Place::cuda, "a device of the place cuda");
  return static_cast<const CudaDevice&>(device).done(event);
}

void cuda_copy_beside(Device& device, void* to, const void* from, int64_t bytes) {
  require(device.place() == Place::cuda, "a device of the place cuda");
  static_cast<CudaDevice&>(device).copy_beside(to, from, bytes);
}

CudaFacts cuda_facts(int index) {
  CudaFacts f;
  cudaDriverGetVersion(&f.driver);
  cudaRuntimeGetVersion(&f.runtime);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) cudaGetLastError();
  if (f.driver == 0 || error == cudaErrorInsufficientDriver)
    refuse_cuda_driver(f.driver, f.runtime);
  if (error == cudaErrorNoDevice)
    count = 0;
  else
    check_call(error, "count the GPUs");
  if (index < 0 || index >= count) refuse_cuda_device(index, count);
  cudaDeviceProp p{};
  check_call(cudaGetDeviceProperties(&p, index), "describe itself");
  f.name = p.name;
  f.major = p.major;
  f.minor = p.minor;
  f.multiprocessors = p.multiProcessorCount;
  f.total_bytes = static_cast<int64_t>(p.totalGlobalMem);
  f.l2_bytes = p.l2CacheSize;
  char pci[32] = {};
  check_call(cudaDeviceGetPCIBusId(pci, sizeof(pci), index), "say where it sits");
  f.pci = pci;
  if (!cuda_kernels_fit(kArchitectures, f.major, f.minor))
    refuse_cuda_architecture(f, kArchitectures);
  return f;
}

std::unique_ptr<Device> make_cuda_device(int index) {
  return std::make_unique<CudaDevice>(index);
}

}  // namespace snug
