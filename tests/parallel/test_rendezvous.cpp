// Which of how many ranks another launcher's variables say, and how such ranks find each other.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "parallel/rendezvous.h"
#include "tests/support/errors.h"

namespace snug {
namespace {

using test::expect_error;

std::optional<ForeignPlace> place_of(const std::map<std::string, std::string>& variables) {
  return foreign_place([&](const char* name) -> const char* {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

TEST(Rendezvous, ReadsEachLaunchersVariables) {
  EXPECT_FALSE(place_of({}).has_value());
  EXPECT_FALSE(place_of({{"WORLD_SIZE", "4"}}).has_value()) << "a container's, without a rank";
  EXPECT_FALSE(place_of({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}).has_value())
      << "the script of a batch job";
  const std::map<std::string, std::string> step = {
      {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_ID", "3"}};
  ASSERT_TRUE(place_of(step).has_value());
  EXPECT_EQ(place_of(step)->key, "3");
  // mpirun within it.
  auto within = step;
  within["SLURM_PROCID"] = "0";
  within["OMPI_COMM_WORLD_RANK"] = "2";
  within["OMPI_COMM_WORLD_SIZE"] = "4";
  EXPECT_EQ(place_of(within)->rank, 2);
  const auto torch = place_of({{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "none"}});
  ASSERT_TRUE(torch.has_value());
  EXPECT_EQ(torch->rank, 3);
  EXPECT_EQ(torch->size, 4);
  EXPECT_EQ(torch->said, "WORLD_SIZE=4");
  EXPECT_EQ(torch->key, "29500-none");
  for (const auto& [rank, size] :
       std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                          {"PMI_RANK", "PMI_SIZE"},
                                          {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"}}) {
    const auto place = place_of({{rank, "1"}, {size, "2"}});
    ASSERT_TRUE(place.has_value()) << size;
    EXPECT_EQ(place->rank, 1);
    EXPECT_EQ(place->size, 2);
    EXPECT_EQ(place->key, "of-" + std::to_string(getppid()));
  }
  // Two that say the same.
  EXPECT_TRUE(place_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}));
}

TEST(Rendezvous, RefusesWhatContradicts) {
  expect_error(
      ErrorCode::usage,
      {"one launcher's word on ranks", "WORLD_SIZE=4 with rank 0, and PMI_SIZE=2 with rank 1",
       "unset PMI_RANK and PMI_SIZE"},
      [] {
        place_of({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
      });
  expect_error(ErrorCode::usage, {"a number of ranks for WORLD_SIZE", "two"}, [] {
    place_of({{"RANK", "0"}, {"WORLD_SIZE", "two"}});
  });
  for (const char* bad : {"-1", "1.5", "2 ", "", "1048577", "99999999999999999999"})
    expect_error(ErrorCode::usage, {"a number of ranks for RANK", bad, "unset RANK"}, [&] {
      place_of({{"RANK", bad}, {"WORLD_SIZE", "2"}});
    });
  expect_error(ErrorCode::usage, {"a rank below WORLD_SIZE=2", "RANK=2"}, [] {
    place_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  });
  expect_error(ErrorCode::unsupported, {"at most 64 ranks", "WORLD_SIZE=65", "fewer ranks"}, [] {
    place_of({{"RANK", "9"}, {"WORLD_SIZE", "65"}});
  });
}

// Who shares memory is of one machine.
TEST(Rendezvous, SaysWhichRanksAreOnSeveralMachines) {
  const auto torch = place_of({{"RANK", "9"}, {"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "8"}});
  EXPECT_EQ(torch.value().apart, "WORLD_SIZE=16, LOCAL_WORLD_SIZE=8");
  const std::map<std::string, std::string> step = {{"SLURM_PROCID", "1"},
                                                   {"SLURM_STEP_NUM_TASKS", "2"},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_STEP_NUM_NODES", "2"}};
  EXPECT_EQ(place_of(step).value().apart, "SLURM_STEP_NUM_TASKS=2, SLURM_STEP_NUM_NODES=2");
  EXPECT_EQ(place_of({{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})
                .value()
                .apart,
            "");
  expect_error(ErrorCode::unsupported,
               {"ranks of one machine for transport: local", "WORLD_SIZE=16, LOCAL_WORLD_SIZE=8",
                "transport=mpi under mpirun"},
               [&] { meet_ranks(*torch, 1); });
}

// Whose memory and processors a rank shares, and which device of a machine is its own.
TEST(Rendezvous, SaysWhichRanksAreOnThisMachine) {
  struct Row {
    std::map<std::string, std::string> variables;
    int local_rank, local_size;
  };
  const std::map<std::string, std::string> torch = {{"RANK", "9"}, {"WORLD_SIZE", "16"}},
                                           mpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                                                  {"OMPI_COMM_WORLD_SIZE", "6"}},
                                           hydra = {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}},
                                           step = {{"SLURM_PROCID", "7"},
                                                   {"SLURM_STEP_NUM_TASKS", "10"},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_STEP_NUM_NODES", "3"}};
  const auto with = [](std::map<std::string, std::string> all,
                       const std::map<std::string, std::string>& more) {
    all.insert(more.begin(), more.end());
    return all;
  };
  const std::vector<Row> rows = {
      {torch, 9, 16},
      {with(torch, {{"LOCAL_WORLD_SIZE", "8"}}), 1, 8},
      {with(torch, {{"LOCAL_WORLD_SIZE", "8"}, {"LOCAL_RANK", "3"}}), 3, 8},
      {mpi, 5, 6},
      {with(mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}), 1, 2},
      {with(hydra, {{"MPI_LOCALNRANKS", "3"}, {"MPI_LOCALRANKID", "2"}}), 2, 3},
      {step, 3, 4},  // spread alike
      {with(step, {{"SLURM_NTASKS_PER_NODE", "5"}, {"SLURM_LOCALID", "2"}}), 2, 5},
      {with(step, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2),2"}, {"SLURM_NODEID", "1"}}), 3, 4},
      {with(step, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2),2"}, {"SLURM_NODEID", "2"}}), 1, 2},
      {with(step, {{"SLURM_STEP_TASKS_PER_NODE", "6,4"}, {"SLURM_NODEID", "7"}}), 3, 4}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto place = place_of(rows[i].variables);
    ASSERT_TRUE(place.has_value()) << i;
    EXPECT_EQ(place->local_rank, rows[i].local_rank) << i;
    EXPECT_EQ(place->local_size, rows[i].local_size) << i;
  }
}

// Processes that have nothing in common but the name of the start.
TEST(Rendezvous, ProcessesMeetByTheNameOfTheirStart) {
  const std::string key = "test-" + std::to_string(getpid());
  constexpr int kSize = 3;
  pid_t children[kSize];
  for (int rank = 0; rank < kSize; ++rank) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    if (rank == 0) usleep(50'000);  // the others knock before there is a door
    const auto group = meet_ranks({rank, kSize, rank, kSize, "WORLD_SIZE=3", key, ""}, 20);
    int32_t mine = 10 + rank, all[kSize] = {};
    group->exchange("hello", all, &mine, sizeof mine);
    _exit(all[0] == 10 && all[1] == 11 && all[2] == 12 ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(Rendezvous, WhoDoesNotComeIsTold) {
  const std::string key = "late-" + std::to_string(getpid());
  expect_error(ErrorCode::collective,
               {"2 ranks, as WORLD_SIZE=2 says", "1 of them did not come", "a longer ddp_timeout"},
               [&] {
                 meet_ranks({0, 2, 0, 2, "WORLD_SIZE=2", key, ""}, 0.2);
               });
  expect_error(ErrorCode::collective, {"2 ranks, as WORLD_SIZE=2 says", "rank 0 did not come"},
               [&] {
                 meet_ranks({1, 2, 1, 2, "WORLD_SIZE=2", key, ""}, 0.2);
               });
}

}  // namespace
}  // namespace snug
