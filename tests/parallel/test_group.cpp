// What ranks tell each other, and what they do when one of them does not come.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "parallel/group.h"
#include "tests/parallel/ranks.h"

namespace snug {
namespace {

using test::on_ranks;

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// Nobody leaves a barrier before the last has come, however late that is.
TEST(Group, ABarrierWaitsForTheLast) {
  for (const int size : {1, 2, 5}) {
    std::atomic<int> here{0};
    on_ranks(size, [&](int rank, Group& group) {
      for (int turn = 0; turn < 20; ++turn) {
        if (turn % size == rank) sleep_ms(2);
        ++here;
        group.barrier("turn");
        EXPECT_GE(here.load(), (turn + 1) * size);
        group.barrier("seen");
      }
    });
    EXPECT_EQ(here.load(), 20 * size);
  }
}

// What was given in a turn is what is read in it, though the fast are a turn ahead.
TEST(Group, AnExchangeGivesEverybodysNote) {
  on_ranks(4, [&](int rank, Group& group) {
    for (int turn = 0; turn < 200; ++turn) {
      const int64_t mine[2] = {rank, 1000 * turn + rank};
      int64_t all[8];
      group.exchange("note", all, mine, sizeof mine);
      for (int r = 0; r < 4; ++r) {
        ASSERT_EQ(all[2 * r], r);
        ASSERT_EQ(all[2 * r + 1], 1000 * turn + r);
      }
      if ((turn + rank) % 37 == 0) sleep_ms(1);
    }
  });
}

// The error of each rank; empty: it came through.
std::vector<std::string> errors_of(int size, const std::function<void(int, Group&)>& f,
                                   double timeout = 60) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  on_ranks(
      size,
      [&](int rank, Group& group) {
        try {
          f(rank, group);
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::collective);
          errors[static_cast<size_t>(rank)] = e.what();
        }
      },
      timeout);
  return errors;
}

TEST(Group, RanksAtDifferentCallsAreTold) {
  const auto errors = errors_of(3, [](int rank, Group& group) {
    group.barrier("alike");
    group.barrier(rank == 2 ? "all_gather" : "reduce_scatter", 64);
    if (rank == 2) group.barrier("never");  // the others have given up
  });
  for (const std::string& e : errors) {
    EXPECT_NE(e.find("all_gather"), std::string::npos) << e;
    EXPECT_NE(e.find("reduce_scatter"), std::string::npos) << e;
  }
  const auto sizes = errors_of(
      2, [](int rank, Group& group) { group.barrier("all_gather", rank == 0 ? 64 : 128); });
  EXPECT_NE(sizes[0].find("all_gather (64)"), std::string::npos) << sizes[0];
  EXPECT_NE(sizes[0].find("all_gather (128)"), std::string::npos) << sizes[0];
}

TEST(Group, WhoGivesUpIsNamedToAllWhoWait) {
  const auto errors = errors_of(3, [](int rank, Group& group) {
    group.barrier("step 1");
    if (rank == 1) {
      sleep_ms(30);
      return group.give_up("the disk is full");
    }
    group.barrier("step 2");
  });
  EXPECT_EQ(errors[1], "");
  for (const int r : {0, 2}) {
    EXPECT_NE(errors[static_cast<size_t>(r)].find("rank 1: the disk is full"), std::string::npos)
        << errors[static_cast<size_t>(r)];
    EXPECT_NE(errors[static_cast<size_t>(r)].find("all 3 ranks to go on"), std::string::npos);
  }
}

// However long it takes.
TEST(Group, WhoGoesOnIsWaitedFor) {
  const auto errors = errors_of(
      2,
      [](int rank, Group& group) {
        for (int i = 0; rank == 1 && i < 24; ++i) {
          sleep_ms(50);
          group.go_on();
        }
        group.barrier("step 1");
      },
      0.5);
  for (const std::string& e : errors) EXPECT_EQ(e, "");
}

TEST(Group, WhoIsLateIsNamedWithWhereItWas) {
  const auto errors = errors_of(
      2,
      [](int rank, Group& group) {
        group.barrier("step 1");
        if (rank == 1) sleep_ms(1200);
        group.barrier("step 2");
      },
      0.3);
  EXPECT_NE(errors[0].find("rank 1: it did not come to step 2 within 0 s; it was last at step 1"),
            std::string::npos)
      << errors[0];
}

}  // namespace
}  // namespace snug
