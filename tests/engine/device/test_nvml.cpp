// NVML, against a library of its name with one made-up GPU (tests/support/fake_nvml.cpp).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "engine/core/error.h"
#include "engine/device/cuda.h"
#include "engine/device/nvml.h"
#include "tests/support/errors.h"
#include "tests/support/folders.h"

namespace snug {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Whoever asks for a library by a name that is loaded gets that one; and it is asked for once in a
// process, so before the first test.
class FakeLibrary : public testing::Environment {
 public:
  void SetUp() override {
    const std::string path = binary_folder() + "/lib/fake_gpu/libnvidia-ml.so.1";
    ASSERT_NE(dlopen(path.c_str(), RTLD_NOW), nullptr) << dlerror();
  }
};
const testing::Environment* const kFake = testing::AddGlobalTestEnvironment(new FakeLibrary);

TEST(Nvml, SaysWhatAGpuDoes) {
  const auto now = gpu_now("0000:3B:00.0");
  ASSERT_TRUE(now);
  EXPECT_EQ(now->total_bytes, 80 * kGiB);
  EXPECT_EQ(now->used_bytes, 30 * kGiB);
  EXPECT_EQ(now->free_bytes, 50 * kGiB);
  EXPECT_EQ(now->utilisation, 87);
  EXPECT_DOUBLE_EQ(now->watts, 512.4);
  EXPECT_DOUBLE_EQ(now->watts_limit, 700);
  EXPECT_EQ(now->sm_mhz, 1755);
  EXPECT_EQ(now->memory_mhz, 2619);
  EXPECT_EQ(now->celsius, -1) << "it refuses to tell";
  ASSERT_EQ(now->processes.size(), 2u);
  EXPECT_EQ(now->processes[0].pid, 4242);
  EXPECT_EQ(now->processes[0].bytes, 20 * kGiB);
  EXPECT_EQ(now->processes[0].name, "python3");
  EXPECT_EQ(now->processes[1].bytes, -1);
  EXPECT_EQ(now->processes[1].name, "") << "one that NVML cannot name";
  EXPECT_EQ(describe(*now), "30.00 GiB of 80.00 GiB used, 87 % busy, 512 W of 700, SM at 1755 MHz");
  EXPECT_FALSE(gpu_now("0000:99:00.0"));
}

// Nothing is a figure too, and not the same as none.
TEST(Nvml, ZeroIsToldAndSilenceIsNot) {
  setenv("FAKE_NVML", "idle", 1);
  const auto idle = gpu_now("0000:3B:00.0");
  setenv("FAKE_NVML", "silent", 1);
  const auto silent = gpu_now("0000:3B:00.0");
  unsetenv("FAKE_NVML");
  ASSERT_TRUE(idle && silent);
  for (const auto& [now, figure] : {std::pair(*idle, 0), {*silent, -1}}) {
    EXPECT_EQ(now.utilisation, figure);
    EXPECT_EQ(now.watts, figure);
    EXPECT_EQ(now.watts_limit, figure);
    EXPECT_EQ(now.sm_mhz, figure);
    EXPECT_EQ(now.memory_mhz, figure);
    EXPECT_EQ(now.celsius, figure);
  }
  EXPECT_EQ(describe(*idle), "30.00 GiB of 80.00 GiB used, 0 % busy, 0 W of 0, SM at 0 MHz");
  EXPECT_EQ(describe(*silent), "30.00 GiB of 80.00 GiB used");
}

// Two processes on one GPU: the second is told who is there.
TEST(Nvml, ARefusalNamesTheOtherProcesses) {
  CudaFacts gpu;
  gpu.name = "Some GPU";
  gpu.pci = "0000:3B:00.0";
  gpu.total_bytes = 80 * kGiB;
  test::expect_error(
      ErrorCode::out_of_memory,
      {"60.00 GiB free on Some GPU for the arena",
       "30.00 GiB are with other processes and the driver (process 4242 python3 with "
       "20.00 "
       "GiB, process 4243)",
       "stop what `nvidia-smi` lists beside it"},
      [&] { refuse_cuda_memory(gpu, 60 * kGiB, 50 * kGiB, 0); });
}

}  // namespace
}  // namespace snug
