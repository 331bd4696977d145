// The place cuda on a made-up GPU: what it asks the runtime for, what it reports, and how a context
// hears the times of ops there. Kernels are not part of it: the ops here are fills and copies.
#include <gtest/gtest.h>

#include <vector>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/cuda.h"
#include "engine/kernels/kernels.h"
#include "tests/support/errors.h"
#include "tests/support/fake_cudart.h"

namespace snug::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override { reset_fake_gpu(); }
  void TearDown() override {
    fake_gpu().sticky = 0;
    EXPECT_EQ(fake_gpu().live_events, 0);
    EXPECT_EQ(fake_gpu().live_streams, 0);
    EXPECT_EQ(fake_gpu().live_graphs, 0);
    EXPECT_EQ(fake_gpu().taken, 0);
  }
};

TEST_F(CudaDevice, ReportsWhatTheDriverGave) {
  const auto device = make_device(Place::cuda);
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, 3 * kMiB + 5}) {
    std::byte* base = device->reserve(bytes);
    device->touch(base, bytes, 1);
    EXPECT_EQ(device->resident(base, bytes), round_up(bytes, 4096));
    EXPECT_EQ(device->memory_info().available_bytes, fake_gpu().total - round_up(bytes, 4096));
    device->release(base, bytes);
  }
  // More than was asked for is not hidden.
  fake_gpu().granule = 2 * kMiB;
  std::byte* base = device->reserve(3 * kMiB);
  EXPECT_EQ(device->resident(base, 3 * kMiB), 4 * kMiB);
  device->release(base, 3 * kMiB);
}

TEST_F(CudaDevice, SaysWhichGpuItIs) {
  const CudaFacts facts = cuda_facts(0);
  EXPECT_EQ(facts.name, "Made-up GPU");
  EXPECT_EQ(facts.pci, "0000:99:00.0");
  fake_gpu().count = 0;
  expect_error(ErrorCode::usage, {"the GPU cuda:0", "no GPU that this process may use"},
               [] { make_device(Place::cuda); });
  fake_gpu().driver = 0;
  expect_error(ErrorCode::unsupported, {"a driver for NVIDIA GPUs", "no driver"},
               [] { make_device(Place::cuda); });
}

TEST_F(CudaDevice, RefusesWhatItHasNot) {
  const auto device = make_device(Place::cuda);
  expect_error(ErrorCode::out_of_memory,
               {"9.00 GiB free on Made-up GPU for the arena", "8.00 GiB of 8.00 GiB", "memory="},
               [&] { device->reserve(int64_t{9} << 30); });
  std::byte* base = device->reserve(kMiB, Residence::host);
  fake_gpu().fail_register = true;
  expect_error(ErrorCode::out_of_memory,
               {"the system to lock 1.00 MiB of the host's memory", "a made-up error", "ulimit -l"},
               [&] { device->touch(base, kMiB, 1); });
  device->release(base, kMiB);
}

TEST_F(CudaDevice, SaysWhatWentWrongLater) {
  const auto device = make_device(Place::cuda);
  fake_gpu().sticky = 700;  // cudaErrorIllegalAddress
  device->synchronize();
  expect_error(
      ErrorCode::device,
      {"the device to finish what it was given", "cudaErrorIllegalAddress: a made-up error",
       "SNUG_SYNC_CHECK=1 to see which kernel made it, if one did"},
      [&] { device->check(); });
  fake_gpu().sticky = 0;
  device->check();
}

// A fill of 1000 bytes, a copy of 3000 to the host, a fill of 500; the clock goes on by a
// microsecond a byte.
struct Recorded {
  explicit Recorded(bool graphs = false) {
    settings.graphs = graphs;
    settings.target = Place::cuda;
    root = schedule.add(Name("root"), -1, true);
    program = schedule.add(Name("work"), root, false);
    plan_ = std::make_unique<Context>(Place::plan, settings);
    make(*plan_);
    run(*plan_);
    big.reset(), host.reset();
    schedule.pack();
  }
  void make(Context& ctx) {
    ctx.program(schedule, root, [&] {
      big = ctx.tensor(Name("big"), {3000}, DType::u8, Category::state);
      host = ctx.host_tensor(Name("host"), {3000}, DType::u8);
    });
  }
  void run(Context& ctx) {
    ctx.repeat(schedule, program, [&] {
      const Tensor a = ctx.tensor(Name("a"), {1000}, DType::u8, Category::workspace);
      fill_zero(ctx, a);
      if (!settings.graphs) {
        ctx.wait_event(kToHost, ctx.record_event(kCompute));
        ctx.copy_to_host(host, big);
        ctx.wait_event(kCompute, ctx.record_event(kToHost));
      }
      const Tensor b = ctx.tensor(Name("b"), {500}, DType::u8, Category::workspace);
      fill_zero(ctx, b);
    });
  }
  Settings settings;
  Schedule schedule;
  int root = -1, program = -1;
  std::unique_ptr<Context> plan_;
  Tensor big, host;
};

class Spans final : public OpListener {
 public:
  void op_done(const Program&, int32_t, double) override { ADD_FAILURE() << "spans were there"; }
  void op_span(const Program& program, int32_t op, double begin, double end) override {
    names.push_back(program.ops[static_cast<size_t>(op)].name);
    seconds.push_back(end - begin);
    begins.push_back(begin);
  }
  std::vector<std::string> names;
  std::vector<double> seconds, begins;
};

TEST_F(CudaDevice, TellsTheDevicesOwnTimesOfOps) {
  Recorded r;
  {
    Context gpu(Place::cuda, r.settings);
    gpu.reserve(r.schedule);
    r.make(gpu);
    r.run(gpu);
    Spans spans;
    gpu.set_listener(&spans);
    const int before = fake_gpu().synchronisations;
    r.run(gpu);
    EXPECT_EQ(fake_gpu().synchronisations, before + 2) << "around the program, not its ops";
    EXPECT_EQ(spans.names, (std::vector<std::string>{"fill_zero", "copy_to_host", "fill_zero"}));
    ASSERT_EQ(spans.seconds.size(), 3u);
    EXPECT_NEAR(spans.seconds[0], 1000e-6, 1e-8);
    EXPECT_NEAR(spans.seconds[1], 3000e-6, 1e-8);
    EXPECT_NEAR(spans.seconds[2], 500e-6, 1e-8);
    EXPECT_NEAR(spans.begins[2] - spans.begins[0], 4000e-6, 1e-8);
    gpu.set_listener(nullptr);
    r.run(gpu);
    EXPECT_EQ(spans.names.size(), 3u);
    r.big.reset(), r.host.reset();
  }
}

// What graphs take they take once, in the second run; no later step changes what is free.
TEST_F(CudaDevice, MemoryIsFlatOnceGraphsAreThere) {
  Recorded r(true);
  fake_gpu().graph_bytes = 5000;
  {
    Context gpu(Place::cuda, r.settings);
    const auto free_now = [&] { return gpu.device().memory_info().available_bytes; };
    const int64_t before = free_now();
    gpu.reserve(r.schedule);
    EXPECT_EQ(before - free_now(), gpu.resident_bytes());
    r.make(gpu);
    r.run(gpu);
    const int64_t after_one = free_now();
    r.run(gpu);
    EXPECT_EQ(gpu.graphs(), 1);
    EXPECT_EQ(after_one - free_now(), 5000);
    const int64_t warm = free_now();
    for (int step = 0; step < 100; ++step) r.run(gpu);
    EXPECT_EQ(free_now(), warm);
    EXPECT_EQ(gpu.graphs(), 1);
    r.big.reset(), r.host.reset();
  }
}

}  // namespace
}  // namespace snug::test
