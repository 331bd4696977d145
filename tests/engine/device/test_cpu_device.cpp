// What the place cpu promises about memory, asked of the operating system.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/sanitizers.h"
#include "engine/core/units.h"
#include "engine/device/device.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;

constexpr int64_t kMiB = 1 << 20;

// Resident bytes of this process, by another way than mincore. (statm is only near on kernels that
// count by processor.)
int64_t process_resident() {
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;)
    if (word == "Rss:") {
      int64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  return -1;
}

class Reservation : public ::testing::TestWithParam<int64_t> {};

TEST_P(Reservation, ResidentExactlyTheRoundedSizeAfterTouch) {
  const int64_t bytes = GetParam(), page = sysconf(_SC_PAGESIZE), size = round_up(bytes, page);
  const auto device = make_device(Place::cpu);
  const int64_t before = process_resident();
  if (before < 0) GTEST_SKIP() << "no /proc/self/smaps_rollup";
  std::byte* base = device->reserve(bytes);
  ASSERT_NE(base, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(base) % static_cast<uintptr_t>(page), 0u);
  EXPECT_EQ(device->resident(base, bytes), 0) << "nothing is backed before it is touched";
  device->touch(base, bytes, 2);
  EXPECT_EQ(device->resident(base, bytes), size);
  // The process grew by the size and little else (its thread pool, the first time).
  EXPECT_GE(process_resident() - before, size);
  EXPECT_LT(process_resident() - before, size + 2 * kMiB);
  // All of it can be written, and writing brings in nothing more.
  std::memset(base, 0x5A, static_cast<size_t>(size));
  EXPECT_EQ(device->resident(base, bytes), size);
  device->release(base, bytes);
  EXPECT_LT(process_resident() - before, size / 2 + 2 * kMiB);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Reservation,
                         ::testing::Values(1, 4095, 4096, 4097, 10 * kMiB, 100 * kMiB + 1));

// One page touched is one page, or one huge page, and never reaches outside the reservation.
TEST(CpuDevice, ResidentCountsPagesNotPromises) {
  const auto device = make_device(Place::cpu);
  std::byte* base = device->reserve(64 * kMiB);
  base[32 * kMiB] = std::byte{1};
  const int64_t resident = device->resident(base, 64 * kMiB);
  EXPECT_GE(resident, sysconf(_SC_PAGESIZE));
  EXPECT_LE(resident, 2 * kMiB);
  EXPECT_EQ(device->resident(base, 16 * kMiB), 0);
  device->release(base, 64 * kMiB);
}

TEST(CpuDevice, ZeroBytesAreAReservationToo) {
  const auto device = make_device(Place::cpu);
  std::byte* base = device->reserve(0);
  ASSERT_NE(base, nullptr);
  device->touch(base, 0, 2);
  EXPECT_EQ(device->resident(base, 0), 0);
  device->release(base, 0);
}

// Runs `body` in a forked child that must be killed by a signal.
template <class F>
bool dies_by_signal(F&& body) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

TEST(CpuDevice, GuardPagesFault) {
  const auto device = make_device(Place::cpu);
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (const int64_t bytes : {page, 3 * page, 3 * page + 1, 4 * kMiB}) {
    std::byte* base = device->reserve(bytes);
    volatile std::byte* p = base;
    const int64_t size = round_up(bytes, page);
    EXPECT_TRUE(dies_by_signal([&] { p[-1] = std::byte{1}; })) << bytes;
    EXPECT_TRUE(dies_by_signal([&] { p[size] = std::byte{1}; })) << bytes;
    EXPECT_TRUE(dies_by_signal([&] { (void)p[size + page - 1]; })) << bytes;
    EXPECT_FALSE(dies_by_signal([&] { p[0] = std::byte{1}; })) << bytes;
    EXPECT_FALSE(dies_by_signal([&] { p[size - 1] = std::byte{1}; })) << bytes;
    device->release(base, bytes);
    EXPECT_TRUE(dies_by_signal([&] { p[0] = std::byte{1}; })) << "released bytes are gone";
  }
}

// As a device's are: neither written nor read outside of work.
TEST(CpuDevice, ClosedBytesAreNotTheHosts) {
  const auto device = make_device(Place::cpu);
  std::byte* base = device->reserve(100);
  volatile std::byte* p = base;
  p[3] = std::byte{5};
  device->allow_host(base, 100, false);
  EXPECT_TRUE(dies_by_signal([&] { (void)p[3]; }));
  EXPECT_TRUE(dies_by_signal([&] { p[3] = std::byte{1}; }));
  device->allow_host(base, 100, true);
  EXPECT_EQ(base[3], std::byte{5});
  device->release(base, 100);
}

// The message of the error that `body` ends with in a child under a limit; "" if it has none.
template <class F>
std::string message_under_limit(__rlimit_resource resource, int64_t bytes, F&& body) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    setrlimit(resource, &limit);
    std::string text;
    try {
      body();
    } catch (const Error& e) {
      text = std::string(e.code() == ErrorCode::out_of_memory ? "" : "wrong code ") + e.what();
    }
    const ssize_t n = write(pipe_ends[1], text.data(), text.size());
    _exit(n == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(pipe_ends[1]);
  std::string text;
  char buffer[256];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof(buffer))) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(pipe_ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

#if SNUG_ADDRESS_SANITIZER || SNUG_THREAD_SANITIZER
constexpr bool kLimitsWork = false;  // the sanitizer's shadow is far above any limit
#else
constexpr bool kLimitsWork = true;
#endif

TEST(CpuDevice, RefusalUnderALimitHasThreeParts) {
  if (!kLimitsWork) GTEST_SKIP() << "limits do not work under AddressSanitizer";
  const std::string expected =
      "out_of_memory: expected the operating system to reserve 2.00 GiB\n"
      "  found: Cannot allocate memory\n"
      "  try:   lower memory=, or raise the limit (ulimit -v)";
  for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
    const auto device = make_device(Place::cpu);
    EXPECT_EQ(message_under_limit(resource, 1024 * kMiB, [&] { device->reserve(2048 * kMiB); }),
              expected);
    // Refused means refused: there is room for what fits.
    EXPECT_EQ(message_under_limit(resource, 1024 * kMiB,
                                  [&] {
                                    try {
                                      device->reserve(2048 * kMiB);
                                    } catch (const Error&) {
                                    }
                                    std::byte* p = device->reserve(100 * kMiB);
                                    device->release(p, 100 * kMiB);
                                  }),
              "");
  }
}

TEST(CpuDevice, NoAddressSpaceHasThatMuch) {
  const auto device = make_device(Place::cpu);
  for (const int64_t bytes : {int64_t{1} << 60, INT64_MAX - 5000, INT64_MAX})
    expect_error(ErrorCode::out_of_memory, {"to reserve", "PiB", "Cannot allocate memory"},
                 [&] { device->reserve(bytes); });
}

TEST(CpuDevice, MemoryInfoIsPlausible) {
  const MemoryInfo info = make_device(Place::cpu)->memory_info();
  EXPECT_GT(info.total_bytes, 64 * kMiB);
  EXPECT_LE(info.total_bytes, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
  EXPECT_GT(info.available_bytes, 0);
  EXPECT_LE(info.available_bytes, info.total_bytes);
}

TEST(CpuDevice, CopyFillAndTheInlineQueue) {
  const auto device = make_device(Place::cpu);
  EXPECT_EQ(device->place(), Place::cpu);
  std::vector<uint8_t> a(1000), b(1000);
  device->fill(a.data(), 7, 999, 0);
  EXPECT_EQ(a[998], 7);
  EXPECT_EQ(a[999], 0);
  device->copy(b.data(), a.data(), 999, 0);
  device->wait_event(0, device->record_event(0));
  device->synchronize();
  EXPECT_EQ(a, b);
}

TEST(PlanDevice, HasShapesAndNoStorage) {
  const auto device = make_device(Place::plan);
  EXPECT_EQ(device->place(), Place::plan);
  EXPECT_EQ(device->resident(nullptr, 0), 0);
  EXPECT_EQ(device->memory_info().total_bytes, 0);
  std::byte x{};
  const auto words = {"Op::run()", "storage used on the place plan", "report"};
  expect_error(ErrorCode::internal, words, [&] { device->reserve(1); });
  expect_error(ErrorCode::internal, words, [&] { device->touch(&x, 1, 2); });
  expect_error(ErrorCode::internal, words, [&] { device->copy(&x, &x, 1, 0); });
  expect_error(ErrorCode::internal, words, [&] { device->fill(&x, 0, 1, 0); });
  device->release(nullptr, 0);
  device->wait_event(0, device->record_event(0));
  device->synchronize();
}

// The place emu is the memory and the streams of the CPU under another name.
TEST(MakeDevice, EmulatesOnTheHost) {
  const auto device = make_device(Place::emu);
  EXPECT_EQ(device->place(), Place::emu);
  EXPECT_STREQ(to_string(device->place()), "emu");
  std::byte* base = device->reserve(10000);
  device->touch(base, 10000, 1);
  EXPECT_EQ(device->resident(base, 10000), 12288);
  device->start_streams(StreamMode::deferred);
  device->fill(base, 7, 4, kCompute);
  device->copy(base + 4, base, 4, kToHost);
  EXPECT_EQ(base[4], std::byte{0});
  device->synchronize();
  EXPECT_EQ(base[7], std::byte{7});
  device->release(base, 10000);
}

TEST(MakeDevice, RefusesOtherPlaces) {
  expect_error(ErrorCode::unsupported,
               {"the place cpu, cuda, emu or plan", "another place", "device=cpu"},
               [] { make_device(static_cast<Place>(77)); });
}

}  // namespace
}  // namespace snug
