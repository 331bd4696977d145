// The graphs that describe attention to cuDNN, by the library itself where it is installed: without
// a GPU it chooses and compiles kernels for one it is told of, whose driver takes them and runs
// none.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/device/cuda_library.h"
#include "layers/ops/attention_cudnn.h"
#include "layers/ops/attention_cudnn_simt.h"
#include "tests/support/errors.h"

// Of the runtime and of nvcc's side of the kernels: nothing here comes to them.
extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
extern "C" const char* cudaGetErrorString(cudaError_t) {
  return "made up";
}

namespace snug {

template <>
void attention_query_lengths_on(simt::cuda::Queue&, const View&, int64_t, int) {
  throw std::logic_error("a launch without a GPU");
}
template <>
void attention_clear_padding_on(simt::cuda::Queue&, const View&, int64_t, int64_t,
                                const AttentionSpec&, int) {
  throw std::logic_error("a launch without a GPU");
}

namespace test {
namespace {

// As cuDNN serialises the properties of a GPU.
struct Gpu {
  const char* name;
  int capability, multiprocessors, shared_optin, threads;
  std::string json() const {
    return fmt::format(
        R"({{"deviceVer":{},"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)"
        R"("regsPerBlock":65536,"multiProcessorCount":{},"warpSize":32,)"
        R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},)"
        R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":24,)"
        R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":{},"pciDeviceId":0,"isTccDriver":0,)"
        R"("supportCoopLaunch":1,"smClockRateKHz":1700000,"memClockRateKHz":2600000,)"
        R"("l2CacheSize":52428800,"deviceName":"{}","driverVer":13000,"cudaDeviceId":0,)"
        R"("totalGlobalMem":85899345920}})",
        capability * 10, multiprocessors, shared_optin, threads, name);
  }
};
const Gpu kGpus[] = {{"NVIDIA A100", 80, 108, 166912, 2048},
                     {"NVIDIA GeForce RTX 4090", 89, 128, 101376, 1536},
                     {"NVIDIA H200", 90, 132, 232448, 2048}};

struct Shape {
  int64_t B, T, H, G, D;
  bool causal = true, padding = false;
};

AttentionSpec spec_of(const Shape& s) {
  static int32_t lengths[16] = {};
  AttentionSpec spec;
  spec.H = s.H;
  spec.G = s.G;
  spec.D = s.D;
  spec.scale = 0.125f;
  spec.causal = s.causal;
  if (s.padding) spec.key_lengths = View{lengths, {s.B}, DType::i32, Place::cpu, Name("lengths")};
  return spec;
}

class SlowCudnnGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    // The loader knows it by its name from here on, whoever asks.
    static void* driver = dlopen(SNUG_FAKE_CUDA_LOADER, RTLD_NOW | RTLD_GLOBAL);
    ASSERT_NE(driver, nullptr) << dlerror();
    const std::string found = describe_cudnn();
    if (found.starts_with("absent")) GTEST_SKIP() << found;
    EXPECT_EQ(found, "of no use: it gives no handle") << "there is no GPU to it";
    EXPECT_EQ(cudnn_version(), "");
    static std::string path, why;  // of the compiler that it loads by name
    static void* nvrtc =
        open_cuda_library("SNUG_NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"}, path, why);
    if (nvrtc == nullptr) GTEST_SKIP() << why;
  }
};

TEST_F(SlowCudnnGraphs, AreTakenWithinThePlannedWorkspace) {
  for (const Gpu& gpu : kGpus)
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const Shape& s : {Shape{8, 1024, 12, 12, 64}, Shape{2, 1000, 4, 2, 64, true, true},
                             Shape{1, 2048, 8, 2, 128, false, true}, Shape{1, 70, 2, 2, 40, false}})
        for (const bool backward : {false, true}) {
          if (dtype == DType::f16 && !s.padding) continue;  // time
          SCOPED_TRACE(fmt::format("{} {} T {} {}", gpu.name, to_string(dtype), s.T,
                                   backward ? "backward" : "forward"));
          const AttentionSpec spec = spec_of(s);
          const int64_t asks =
              attention_cudnn_asks(gpu.json(), gpu.capability, dtype, s.B, s.T, spec, backward);
          const int64_t planned = attention_cudnn_scratch(s.B, s.T, spec, backward).graph;
          EXPECT_LE(asks, planned);
          // The cap follows what is asked for.
          EXPECT_GE(asks, (planned - (int64_t{4} << 20)) * 9 / 10);
        }
}

TEST_F(SlowCudnnGraphs, RefusalsSayWhatTheLibrarySays) {
  const Gpu& gpu = kGpus[2];
  expect_error(
      ErrorCode::unsupported,
      {"cuDNN to compute attention",
       "backward of B=1 T=1 H=2 G=2 D=64: s_q = s_kv = 1 is not supported.",
       "let the kernel of this program do it: without the setting cudnn"},
      [&] {
        attention_cudnn_asks(gpu.json(), 90, DType::bf16, 1, 1, spec_of({1, 1, 2, 2, 64}), true);
      });
  const View none;
  simt::cuda::Queue queue;
  expect_error(
      ErrorCode::unsupported,
      {"cuDNN to compute attention", "cuDNN is of no use: it gives no handle"}, [&] {
        attention_cudnn_forward(queue, none, none, none, 1, 64, spec_of({1, 64, 2, 2, 64}), none);
      });
}

}  // namespace
}  // namespace test
}  // namespace snug
