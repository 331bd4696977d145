// What is said about GPUs on machines without one: why there is no place cuda, and on which GPUs
// the kernels of a build run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/core/error.h"
#include "engine/device/cuda.h"
#include "engine/device/cuda_library.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;

CudaFacts some_gpu() {
  CudaFacts f;
  f.name = "Some GPU";
  f.major = 8;
  f.minor = 6;
  f.multiprocessors = 82;
  f.total_bytes = int64_t{24} << 30;
  f.driver = 12040;
  f.runtime = 13000;
  return f;
}

// Compute capabilities: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
TEST(CudaKernels, FitTheGpusTheyWereCompiledFor) {
  const std::string usual = "80,86,89,90";
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 7}, {8, 9}, {9, 0}, {10, 0}})
    EXPECT_TRUE(cuda_kernels_fit(usual, major, minor)) << major << "." << minor;
  EXPECT_FALSE(cuda_kernels_fit(usual, 7, 5));
  EXPECT_TRUE(cuda_kernels_fit("80", 9, 0));   // by PTX
  EXPECT_FALSE(cuda_kernels_fit("86", 8, 0));  // neither the binary nor PTX goes back
  EXPECT_TRUE(cuda_kernels_fit("90,120", 9, 0));
  EXPECT_FALSE(cuda_kernels_fit("90,120", 8, 9));
  EXPECT_TRUE(cuda_kernels_fit("90,120", 12, 1));
  EXPECT_TRUE(cuda_kernels_fit("120,80", 9, 0));  // the last one is PTX, be it the oldest
  EXPECT_FALSE(cuda_kernels_fit("80,120", 9, 0));
  EXPECT_FALSE(cuda_kernels_fit("90,120", 10, 0));
  EXPECT_FALSE(cuda_kernels_fit("", 9, 0));
}

TEST(CudaRefusals, NameWhatIsMissing) {
  expect_error(ErrorCode::unsupported,
               {"a build with the place cuda", "one without it", "-DSNUG_CUDA=ON"},
               [] { refuse_no_cuda_build(); });
  expect_error(ErrorCode::unsupported,
               {"a driver for NVIDIA GPUs that serves CUDA 13.0", "no driver", "nvidia-smi"},
               [] { refuse_cuda_driver(0, 13000); });
  expect_error(ErrorCode::unsupported,
               {"serves CUDA 13.1", "one for CUDA 12.4", "update the driver"},
               [] { refuse_cuda_driver(12040, 13010); });
  expect_error(ErrorCode::usage,
               {"the GPU cuda:0", "no GPU that this process may use", "CUDA_VISIBLE_DEVICES"},
               [] { refuse_cuda_device(0, 0); });
  expect_error(ErrorCode::usage, {"the GPU cuda:4", "GPUs cuda:0 to cuda:3"},
               [] { refuse_cuda_device(4, 4); });
}

TEST(CudaRefusals, NameTheGpuThatDoesNotServe) {
  CudaFacts old = some_gpu();
  old.major = 7;
  old.minor = 5;
  expect_error(ErrorCode::unsupported,
               {"a GPU that the kernels of this build run on (compiled for 80,90)",
                "Some GPU of compute capability 7.5", "use a GPU of compute capability 8.0"},
               [&] { refuse_cuda_architecture(old, "80,90"); });
  expect_error(ErrorCode::unsupported, {"compiled for 90", "-DSNUG_CUDA_ARCHITECTURES=86"},
               [&] { refuse_cuda_architecture(some_gpu(), "90"); });
  constexpr int64_t kGiB = int64_t{1} << 30;
  expect_error(ErrorCode::out_of_memory,
               {"8.00 GiB free on Some GPU for the arena", "3.00 GiB of 24.00 GiB",
                "this process holds 1.00 GiB there, and 20.00 GiB are with other processes",
                "nvidia-smi", "memory="},
               [&] { refuse_cuda_memory(some_gpu(), 8 * kGiB, 3 * kGiB, kGiB); });
  EXPECT_EQ(describe(some_gpu()),
            "Some GPU, compute capability 8.6, 82 SMs, 24.00 GiB, CUDA driver 12.4, runtime 13.0");
}

// On any machine: a device, or a reason in three parts.
TEST(MakeDevice, GivesThePlaceCudaOrSaysWhyNot) {
  try {
    EXPECT_EQ(make_device(Place::cuda)->place(), Place::cuda);
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2) << e.what();
    EXPECT_EQ(e.code() == ErrorCode::unsupported && !kCudaBuilt,
              e.expected() == "a build with the place cuda");
    EXPECT_FALSE(e.found().empty());
    EXPECT_FALSE(e.advice().empty());
  }
  EXPECT_STREQ(to_string(Place::cuda), "cuda");
}

class SetVariable {
 public:
  SetVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~SetVariable() {
    if (before_.empty())
      unsetenv(name_);
    else
      setenv(name_, before_.c_str(), 1);
  }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;

 private:
  const char* name_;
  std::string before_;
};

// The toolkit before Python's wheels; what is not there is not tried.
TEST(CudaLibrary, IsLookedForInTheToolkitAndInWheels) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("snug-cuda-" + std::to_string(getpid()));
  const fs::path toolkit = folder / "toolkit", python = folder / "env";
  const fs::path wheels = python / "lib" / "python3.11" / "site-packages" / "nvidia";
  std::vector<std::string> expected = {"libnone.so.9", (toolkit / "lib64/libnone.so.9").string(),
                                       (wheels / "cu13/lib/libnone.so.9").string(),
                                       (wheels / "cublas/lib/libnone.so.9").string()};
  for (size_t i = 1; i < expected.size(); ++i) {
    fs::create_directories(fs::path(expected[i]).parent_path());
    std::ofstream(expected[i]) << "no library";
  }
  fs::create_directories(python / "lib" / "perl5" / "site-packages" / "nvidia");
  const SetVariable home("CUDA_HOME", toolkit.string()), env("VIRTUAL_ENV", python.string());
  EXPECT_EQ(cuda_library_places("libnone.so.9"), expected);

  std::string path, why;
  EXPECT_EQ(open_cuda_library("SNUG_NONE", {"libnone.so.9"}, path, why), nullptr);
  EXPECT_NE(why.find("libnone.so.9"), std::string::npos) << why;
  {
    // The named file alone: that of the math library would do as well as any.
    const SetVariable only("SNUG_NONE", expected[1]);
    EXPECT_EQ(open_cuda_library("SNUG_NONE", {"libm.so.6"}, path, why), nullptr);
    EXPECT_NE(why.find(expected[1]), std::string::npos) << why;
  }
  EXPECT_NE(open_cuda_library("SNUG_NONE", {"libnone.so.9", "libm.so.6"}, path, why), nullptr);
  EXPECT_EQ(path, "libm.so.6");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace snug
