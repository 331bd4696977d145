// Ranks whose tensors NCCL moves, a fake of it: sums, and what becomes of a device that waits for one that does
// not come.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "parallel/device_calls.h"
#include "parallel/nccl_transport.h"
#include "tests/parallel/nccl.h"
#include "tests/parallel/ranks.h"
#include "tests/parallel/transport_sums.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;
using test::FakeNccl;

// In processes of their own, and before all others: a library is loaded once.
TEST(NcclLibraries, OneThatIsAbsentOrTooOldIsRefused) {
  const auto refused = [](const char* file, const char* version, const std::string& found) {
    const pid_t child = fork();
    if (child != 0) {
      int status = -1;
      EXPECT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
      return;
    }
    setenv(kNcclLibraryVariable, file, 1);
    setenv("FAKE_NCCL_VERSION", version, 1);
    expect_error(ErrorCode::usage,
                 {"NCCL 2.18 or later (libnccl.so.2) for ranks on GPUs", found.c_str(),
                  "install it (pip install nvidia-nccl-cu13"},
                 [] { NcclLibrary::load(); });
    _exit(testing::Test::HasFailure() ? 1 : 0);
  };
  refused("/nowhere/libnccl.so.2", "22809", "/nowhere/libnccl.so.2: cannot open");
  refused("libm.so.6", "22809", "libm.so.6 without ncclGetVersion");
  refused(SNUG_FAKE_NCCL, "21605", std::string(SNUG_FAKE_NCCL) + ", version 2.16.5");
}

// NCCL itself, where it is installed: it has all functions, and names ranks on a machine without GPUs too.
TEST(NcclLibraries, TheRealOneHasWhatIsTaken) {
  constexpr int kAbsent = 77;
  const pid_t child = fork();
  if (child == 0) {
    unsetenv(kNcclLibraryVariable);
    try {
      const NcclLibrary& nccl = NcclLibrary::load();
      NcclLibrary::Id a{}, b{};
      const bool good = nccl.version() >= NcclLibrary::kOldest &&
                        nccl.make_id(a) == NcclLibrary::kSuccess &&
                        nccl.make_id(b) == NcclLibrary::kSuccess && a != b;
      _exit(good ? 0 : 1);
    } catch (const Error&) {
      _exit(kAbsent);
    }
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kAbsent) GTEST_SKIP() << "no libnccl.so.2 where CUDA's libraries are";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The last piece does not fit the room: it passes in chunks, of which the last is shorter.
TEST(NcclTransport, SumsInTheOrderOfRanksAndGathers) {
  test::use_fake_nccl();
  for (const int size : {1, 2, 3, 4})
    test::on_ranks(size, [&](int, LocalGroup& group) {
      for (const int64_t piece : {int64_t{1}, int64_t{255}, int64_t{200077}}) {
        SCOPED_TRACE(std::to_string(size) + " ranks, pieces of " + std::to_string(piece));
        NcclTransport f32(group);
        test::check_sums<float>(f32, piece, 1, Place::emu);
        f32.detach();
        NcclTransport sixteen(group);
        test::check_sums<bf16>(sixteen, piece, 1, Place::emu);
      }
    });
}

// What each rank says where NCCL fails on one, or never is done there.
void expect_ends(int size, const std::string& what, const std::string& others, double timeout) {
  std::atomic<int> told{0};
  test::on_ranks(
      size,
      [&](int rank, LocalGroup& group) {
        SCOPED_TRACE("rank " + std::to_string(rank));
        NcclTransport transport(group);
        Context ctx(Place::emu, {});
        std::vector<float> arena(4096);
        const auto row = [&](int64_t at, int64_t n) {
          return test::view_of(arena.data() + at, n, DType::f32);
        };
        try {
          transport.attach(ctx, reinterpret_cast<std::byte*>(arena.data()), 4096 * 4);
          for (int i = 0; i < 20; ++i) {
            transport.all_gather(ctx, row(0, size * 8), row(1024, 8));
            transport.reduce_scatter_sum(ctx, {row(1024, 8), false}, row(0, size * 8),
                                         row(2048, (size - 1) * 8));
          }
        } catch (const Error& e) {
          ++told;
          EXPECT_EQ(e.code(), ErrorCode::collective);
          const std::string text = e.what();
          EXPECT_TRUE(text.find(what) != text.npos || text.find(others) != text.npos) << text;
        }
      },
      timeout);
  EXPECT_EQ(told, size);
}

TEST(NcclTransport, WhatItSaysOfAPeerIsSaid) {
  test::use_fake_nccl();
  const FakeNccl fails("FAKE_NCCL_FAILS", "7"), on("FAKE_NCCL_FAILS_ON", "1");
  const std::string said =
      "rank 1: NCCL at all_gather: remote process exited or there was a network error (the fake "
      "says so)";
  expect_ends(3, said, said, 60);
}

// The devices of the others wait for it, and their hosts in what reads them.
TEST(NcclTransport, DevicesThatAreNeverDoneAreSaid) {
  test::use_fake_nccl();
  const FakeNccl stalls("FAKE_NCCL_STALLS", "6"), on("FAKE_NCCL_FAILS_ON", "2");
  const std::string said = " did not end on the devices within 3 s, while all processes go on";
  expect_ends(3, said, said, 3);
}

// The oldest that is not done counts, from when the stream comes to it.
TEST(DeviceCalls, CountFromWhereTheStreamIs) {
  DeviceCalls calls;
  EventId reached = 0;
  const auto done = [&](EventId e) { return e <= reached; };
  const auto oldest = [&](double now) { return calls.look(now, done); };
  EXPECT_EQ(oldest(1).what, nullptr);
  calls.add("a", 1, 10);
  calls.issued(2);
  calls.add("b", 3, 11);
  EXPECT_STREQ(oldest(20).what, "a");
  EXPECT_EQ(oldest(20).began, 0) << "compute before it";
  reached = 1;
  EXPECT_EQ(oldest(30).began, 30);
  EXPECT_EQ(oldest(40).began, 30);
  calls.issued(4);
  reached = 2;
  EXPECT_STREQ(oldest(50).what, "b");
  EXPECT_EQ(oldest(50).began, 0);
  reached = 4;
  EXPECT_EQ(oldest(60).what, nullptr);
  // Without events a call is there at once, and done when it is issued.
  calls.add("c", -1, 70);
  EXPECT_EQ(oldest(80).began, 70);
  calls.issued(-1);
  EXPECT_EQ(oldest(80).what, nullptr);
  for (int64_t i = 0; i < DeviceCalls::kMost; ++i) {
    EXPECT_FALSE(calls.full());
    calls.add("d", 5, 90);
    calls.issued(5);
  }
  EXPECT_TRUE(calls.full());
  reached = 5;
  EXPECT_EQ(oldest(90).what, nullptr);
  EXPECT_FALSE(calls.full());
}

// The stream of rank 1 has so much to compute before a call, longer than the time-out; and then a call that
// it is never done with.
TEST(NcclTransport, WhatIsComputedBeforeACallIsNotCounted) {
  test::use_fake_nccl();
  constexpr double kTimeout = 1, kSlow = 3.5;
  for (const bool stands : {false, true}) {
    std::atomic<int> told{0};
    const double start = monotonic_seconds();
    test::on_ranks(
        2,
        [&](int rank, LocalGroup& group) {
          // Event 2 k is before call k, and 2 k + 1 behind it.
          std::atomic<EventId> next{0};
          std::atomic<double> slow_until{0};
          const auto done = [&](EventId e) {
            if (e < 2) return true;  // of attach()
            if (rank == 0) return !stands || e < 3;
            if (stands) return e < 3;
            return monotonic_seconds() > slow_until;
          };
          NcclTransport transport(group, {[&] { return next++; }, done});
          Context ctx(Place::emu, {});
          std::vector<float> arena(4096);
          const auto row = [&](int64_t at, int64_t n) {
            return test::view_of(arena.data() + at, n, DType::f32);
          };
          try {
            transport.attach(ctx, reinterpret_cast<std::byte*>(arena.data()), 4096 * 4);
            slow_until = monotonic_seconds() + kSlow;
            transport.all_gather(ctx, row(0, 16), row(1024, 8));
            while (monotonic_seconds() < start + 2 * kSlow) {
              group.check();
              if (!stands && monotonic_seconds() > slow_until + 0.5) break;
              usleep(10'000);
            }
          } catch (const Error& e) {
            ++told;
            EXPECT_NE(
                std::string(e.what()).find("all_gather did not end on the devices within 1 s"),
                std::string::npos)
                << e.what();
          }
          transport.detach();
        },
        kTimeout);
    EXPECT_EQ(told, stands ? 2 : 0);
  }
}

// A process that stands still, or is gone, behind the call that all came to.
TEST(NcclTransport, WhoIsGoneOrStandsStillWhileDevicesWaitIsNamed) {
  test::use_fake_nccl();
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const LocalGroup::Files files = LocalGroup::make_files(2);
    const pid_t victim = fork();
    if (victim == 0) {
      setenv("FAKE_NCCL_STALLS", "5", 1);
      setenv("FAKE_NCCL_FAILS_ON", "1", 1);
    }
    const int rank = victim == 0 ? 1 : 0;
    const auto group = LocalGroup::of_processes(rank, files);
    group->set_timeout(victim == 0 ? 60 : 2);
    std::vector<float> arena(4096);
    const auto row = [&](int64_t at, int64_t n) {
      return test::view_of(arena.data() + at, n, DType::f32);
    };
    Context ctx(Place::emu, {});
    NcclTransport transport(*group);
    std::atomic<bool> over{false};
    std::thread later;
    if (victim != 0)
      later = std::thread([&] {
        usleep(500'000);  // both are at the call by then, or come to it
        kill(victim, signal);
      });
    std::string said;
    try {
      transport.attach(ctx, reinterpret_cast<std::byte*>(arena.data()), 4096 * 4);
      for (int i = 0; i < 1'000'000; ++i) transport.all_gather(ctx, row(0, 16), row(1024, 8));
    } catch (const Error& e) {
      said = e.what();
    }
    if (victim == 0) _exit(0);
    later.join();
    kill(victim, SIGKILL);
    EXPECT_EQ(waitpid(victim, nullptr, 0), victim);
    const char* const found = signal == SIGKILL ? "rank 1: its process " : "rank 1: it did not ";
    EXPECT_NE(said.find(found), std::string::npos) << said;
    transport.detach();
  }
}

}  // namespace
}  // namespace snug
