// Ranks that Open MPI's messages join: sums, and what becomes of one that does not come.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "engine/core/error.h"
#include "parallel/mpi_transport.h"
#include "tests/parallel/mpi.h"
#include "tests/parallel/transport_sums.h"

namespace snug {
namespace {

// The last piece of four ranks does not fit the room: it passes in chunks, of which the last is shorter.
TEST(MpiTransport, SumsInTheOrderOfRanksAndGathers) {
  NEEDS_MPIRUN();
  for (const int size : {1, 2, 3, 4})
    test::on_mpi(size, [&](MpiGroup& group) {
      MpiTransport transport(group);
      for (const int64_t piece : {int64_t{1}, int64_t{255}, int64_t{200077}}) {
        SCOPED_TRACE(std::to_string(group.size()) + " ranks, pieces of " + std::to_string(piece));
        test::check_sums<float>(transport, piece, 1);
        test::check_sums<bf16>(transport, piece, 2);
      }
    });
}

// What was given in a turn is what is read in it, though the fast are a turn ahead.
TEST(MpiGroups, AnExchangeGivesEverybodysNote) {
  NEEDS_MPIRUN();
  test::on_mpi(4, [](MpiGroup& group) {
    for (int turn = 0; turn < 200; ++turn) {
      const int64_t mine[2] = {group.rank(), 1000 * turn + group.rank()};
      int64_t all[8];
      group.exchange("note", all, mine, sizeof mine);
      for (int r = 0; r < 4; ++r) {
        ASSERT_EQ(all[2 * r], r);
        ASSERT_EQ(all[2 * r + 1], 1000 * turn + r);
      }
      if ((turn + group.rank()) % 37 == 0) test::wait_somehow(group.rank(), turn);
    }
  });
}

TEST(MpiGroups, WhoGoesOnIsWaitedFor) {
  NEEDS_MPIRUN();
  test::on_mpi(
      2,
      [](MpiGroup& group) {
        for (int i = 0; group.rank() == 1 && i < 40; ++i) {
          usleep(50'000);
          group.go_on();
        }
        group.barrier("step 1");
      },
      test::Ends::well, 1);
}

// The error that a call gives; empty: none.
template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::collective);
    return e.what();
  }
  return "";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(MpiGroups, RanksAtDifferentCallsAreTold) {
  NEEDS_MPIRUN();
  test::on_mpi(
      3,
      [](MpiGroup& group) {
        group.barrier("alike");
        const std::string e = error_of([&] {
          group.barrier(group.rank() == 2 ? "all_gather" : "reduce_scatter", 64);
          group.barrier("never");
        });
        expect_in(e, "all_gather (64)");
        expect_in(e, "reduce_scatter (64)");
        EXPECT_TRUE(group.given_up());
      },
      test::Ends::broken);
}

TEST(MpiGroups, WhoGivesUpIsNamedToAllWhoWait) {
  NEEDS_MPIRUN();
  test::on_mpi(
      3,
      [](MpiGroup& group) {
        group.barrier("step 1");
        if (group.rank() == 1) {
          usleep(30'000);
          return group.give_up("the disk is full");
        }
        const std::string e = error_of([&] { group.barrier("step 2"); });
        expect_in(e, "rank 1: the disk is full");
        expect_in(e, "all 3 ranks to go on");
      },
      test::Ends::broken);
}

TEST(MpiGroups, WhoIsLateIsNamedWithWhereItWas) {
  NEEDS_MPIRUN();
  test::on_mpi(
      2,
      [](MpiGroup& group) {
        group.barrier("step 1");
        if (group.rank() == 1) return void(usleep(2'000'000));
        const std::string e = error_of([&] { group.barrier("step 2"); });
        expect_in(e, "rank 1: it did not come to step 2 within 0 s; it was last at step 1");
      },
      test::Ends::broken, 0.3);
}

}  // namespace
}  // namespace snug
