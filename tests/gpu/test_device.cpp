// What the place cuda promises about memory and streams, asked of the driver.
#include <unistd.h>

#include <cstring>
#include <vector>

#include "engine/core/units.h"
#include "tests/gpu/gpu.h"
#include "tests/support/errors.h"

namespace snug::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class GpuDevice : public Gpu {};

TEST_F(GpuDevice, ReservesOnceAndExactly) {
  const auto device = make_device(Place::cuda);
  EXPECT_EQ(device->place(), Place::cuda);
  const int64_t before = device->memory_info().available_bytes;
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, 256 * kMiB + 12345}) {
    std::byte* base = device->reserve(bytes);
    device->touch(base, bytes, 1);
    EXPECT_EQ(device->resident(base, bytes), round_up(bytes, 4096));
    // The driver hands out whole blocks of some MiB; others may use the GPU too.
    if (bytes > kMiB) {
      EXPECT_GE(before - device->memory_info().available_bytes, bytes - 64 * kMiB);
    }
    device->release(base, bytes);
  }
  EXPECT_LE(device->memory_info().available_bytes, device->memory_info().total_bytes);
}

TEST_F(GpuDevice, LocksTheHostArena) {
  const auto device = make_device(Place::cuda);
  const int64_t bytes = 3 * kMiB + 5, page = sysconf(_SC_PAGESIZE);
  std::byte* base = device->reserve(bytes, Residence::host);
  device->touch(base, bytes, 2);
  EXPECT_EQ(device->resident(base, bytes), round_up(bytes, page));
  std::memset(base, 1, static_cast<size_t>(bytes));
  device->release(base, bytes);
  base = device->reserve(bytes, Residence::host);
  device->touch(base, bytes, 1);
  device->release(base, bytes);
}

// A chain over all streams, longer than a stream has events: each link waits for the one before.
TEST_F(GpuDevice, EventsOrderTheStreams) {
  const auto device = make_device(Place::cuda);
  constexpr int64_t kBytes = 8 * kMiB;
  constexpr int kRounds = 200;
  std::byte* gpu = device->reserve(2 * kBytes);
  std::byte* host = device->reserve(kBytes, Residence::host);
  device->touch(gpu, 2 * kBytes, 1);
  device->touch(host, kBytes, 1);
  device->start_streams(StreamMode::immediate);
  for (int round = 1; round <= kRounds; ++round) {
    device->fill(gpu, static_cast<uint8_t>(round), kBytes, kCompute);
    device->wait_event(kToHost, device->record_event(kCompute));
    device->copy(host, gpu, kBytes, kToHost);
    device->wait_event(kToDevice, device->record_event(kToHost));
    device->copy(gpu + kBytes, host, kBytes, kToDevice);
    device->wait_event(kCompute, device->record_event(kToDevice));
  }
  std::vector<std::byte> back(static_cast<size_t>(kBytes));
  device->copy(back.data(), gpu + kBytes, kBytes, kCompute);
  device->synchronize();
  device->check();
  for (const std::byte b : back) ASSERT_EQ(b, std::byte{kRounds});
  device->release(gpu, 2 * kBytes);
  device->release(host, kBytes);
}

TEST_F(GpuDevice, MarksTellTheTimeOfWork) {
  const auto device = make_device(Place::cuda);
  ASSERT_TRUE(device->has_marks());
  device->make_marks(3);
  std::byte* base = device->reserve(512 * kMiB);
  device->touch(base, 512 * kMiB, 1);
  device->mark(0, kCompute);
  device->mark(1, kCompute);
  device->fill(base, 1, 512 * kMiB, kCompute);
  device->mark(2, kCompute);
  device->synchronize();
  device->check();
  EXPECT_GE(device->mark_seconds(1), 0);
  EXPECT_GT(device->mark_seconds(2), device->mark_seconds(1) + 1e-6) << "512 MiB take time";
  device->release(base, 512 * kMiB);
}

TEST_F(GpuDevice, RefusesMoreThanIsFree) {
  const auto device = make_device(Place::cuda);
  const MemoryInfo info = device->memory_info();
  expect_error(ErrorCode::out_of_memory, {"for the arena", "this process holds", "nvidia-smi"},
               [&] { device->reserve(info.total_bytes + kMiB); });
  expect_error(ErrorCode::usage, {"the GPU cuda:4096", "nvidia-smi -L"},
               [] { make_device(Place::cuda, 4096); });
  // And works on.
  std::byte* base = device->reserve(kMiB);
  device->touch(base, kMiB, 1);
  device->release(base, kMiB);
}

TEST_F(GpuDevice, ReportsAWrongCall) {
  const auto device = make_device(Place::cuda);
  std::byte* base = device->reserve(kMiB);
  expect_error(ErrorCode::device,
               {"the device to fill memory", "cudaErrorInvalidValue",
                "SNUG_SYNC_CHECK=1 to see which kernel made it"},
               [&] { device->fill(base, 0, int64_t{1} << 60, kCompute); });
  device->check();
  device->release(base, kMiB);
}

}  // namespace
}  // namespace snug::test
