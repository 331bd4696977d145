// Runs whose ranks mpirun started and whose bytes Open MPI moves.
#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/mpirun.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

const std::vector<std::string> kThread = {"threads=1"};

std::vector<std::string> local(const std::vector<std::string>& more, int ranks = 2) {
  return joined({"threads=1", "ranks=" + std::to_string(ranks)}, more);
}

std::vector<std::string> mpi(const std::vector<std::string>& more) {
  return joined({"threads=1", "transport=mpi"}, more);
}

// `mpirun -n ranks [more] snug train ...` to its end, which must be good.
Outcome trained(const Workspace& w, const std::string& name, const std::vector<std::string>& keys,
                int ranks = 2, const std::vector<std::string>& more = {}) {
  Child child(w.train_arguments(name, keys), test::mpirun_words(ranks, more));
  const Outcome o = child.finish();
  EXPECT_EQ(o.code, 0) << name << "\n" << o.out << o.err;
  return o;
}

// Open MPI moves bytes alone: the bits are those of ranks that share memory, and what it takes for itself is
// within what the plan declares.
TEST(MpiRuns, HaveTheBitsOfThoseThatShareMemory) {
  NEEDS_MPIRUN();
  const Workspace w;
  for (const char* zero : {"zero=0", "zero=1", "zero=2", "zero=3"}) {
    const std::string here = std::string(zero) + "local", apart = std::string(zero) + "mpi";
    const int ranks = zero[5] == '3' ? 3 : 2;
    w.trained(here, local({zero, "precision=bf16"}, ranks));
    const Outcome o = trained(w, apart, mpi({zero, "precision=bf16"}), ranks);
    EXPECT_NE(o.out.find("ranks exchange messages by Open MPI"), std::string::npos) << o.out;
    for (int r = 0; r < ranks; ++r) {
      const std::string folder = r == 0 ? apart : apart + "/ranks/" + std::to_string(r);
      expect_exact(w, folder);
      const Json memory = w.json(folder + "/memory.json");
      EXPECT_LE(memory["measured_runtime_bytes"], memory["planned_runtime_bytes"]);
      EXPECT_EQ(w.json(folder + "/plan.json")["hash"], w.json(apart + "/plan.json")["hash"]);
      EXPECT_EQ(w.losses(folder), w.losses(here));
    }
    EXPECT_EQ(w.json(apart + "/plan.json")["decisions"]["transport"], "mpi");
    expect_same_bytes(w, apart, here, "final/model.safetensors");
    for (const char* file :
         {"checkpoint-12/model.safetensors", "checkpoint-12/optimizer.safetensors"})
      expect_same_tensors(w, apart, here, file);
  }
}

// A checkpoint is one of the model, whoever moved its bytes.
TEST(MpiRuns, GoOnFromOtherTransportsAndOthersFromThem) {
  NEEDS_MPIRUN();
  const Workspace w;
  const std::vector<std::string> keys = {"zero=2", "optim=adamw_8bit", "save_steps=6"};
  w.trained("here", local(keys));
  trained(w, "apart", mpi(keys));
  lose_power_after(w, "here", "on", 6);
  trained(w, "on", joined(mpi(keys), {"resume=latest"}));
  expect_same_bytes(w, "on", "here", "final/model.safetensors");
  expect_same_tensors(w, "on", "here", "checkpoint-12/optimizer.safetensors");
  lose_power_after(w, "apart", "back", 6);
  w.trained("back", joined(local(keys), {"resume=latest"}));
  expect_same_bytes(w, "back", "here", "final/model.safetensors");
  expect_same_tensors(w, "back", "here", "checkpoint-12/optimizer.safetensors");
}

// As far as one machine can be several: each process is told that it is alone on its own, and MPI is kept
// from sharing memory.
TEST(MpiRuns, OfSeveralMachines) {
  NEEDS_MPIRUN();
  const Workspace w;
  const std::vector<std::string> net = {"--mca", "btl", "self,tcp", "/usr/bin/env",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
  w.trained("here", local({"zero=3"}));
  const Outcome o = trained(w, "apart", joined(kThread, {"zero=3"}), 2, net);
  EXPECT_NE(o.out.find("ranks exchange messages by Open MPI"), std::string::npos) << o.out;
  expect_exact(w, "apart");
  expect_exact(w, "apart/ranks/1");
  expect_same_bytes(w, "apart", "here", "final/model.safetensors");
  Child child(w.train_arguments("no", joined(kThread, {"transport=local"})),
              test::mpirun_words(2, net));
  const Outcome no = child.finish();
  EXPECT_NE(no.code, 0);
  EXPECT_NE(no.err.find("expected ranks of one machine for transport: local"), std::string::npos)
      << no.err;
}

// Memory is shared by the ranks of a machine, and processors by those that may use them.
TEST(MpiRuns, ShareWhatTheirMachineHas) {
  NEEDS_MPIRUN();
  const Workspace w;
  const std::vector<std::string> keys = {"memory=auto"},
                                 alone = {"/usr/bin/env", "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
  trained(w, "here", joined(mpi({}), keys));
  trained(w, "apart", joined(kThread, keys), 2, alone);
  const auto budget = [&](const std::string& name) {
    return w.json(name + "/plan.json")["budget_bytes"].get<double>();
  };
  // Beside what others take and give back meanwhile.
  EXPECT_GT(budget("apart") / budget("here"), 1.5);
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<std::string> cpus;
  for (int i = 0; i < CPU_SETSIZE && cpus.size() < 2; ++i)
    if (CPU_ISSET(i, &allowed)) cpus.push_back(std::to_string(i));
  if (cpus.size() < 2) GTEST_SKIP() << "one processor";
  const std::string two = cpus[0] + "," + cpus[1];
  const auto warned = [&](const std::string& where, const char* transport) {
    std::vector<std::string> words = w.train_arguments(
        "run", joined(kThread, {std::string("transport=") + transport, "overwrite=true"}));
    Child child(words, test::mpirun_words(
                           2, {"/bin/sh", "-c", "exec taskset -c " + where + " \"$@\"", "sh"}));
    const Outcome o = child.finish();
    EXPECT_EQ(o.code, 0) << o.err;
    return o.err.find("Warning: of 2 ranks threads=") != std::string::npos;
  };
  for (const char* transport : {"local", "mpi"}) {
    EXPECT_FALSE(
        warned("$(echo " + two + " | cut -d, -f$((OMPI_COMM_WORLD_RANK + 1)))", transport));
    EXPECT_FALSE(warned(two, transport));
    EXPECT_TRUE(warned(cpus[0], transport));
  }
}

// It is named, the others end, and what was saved is whole.
TEST(MpiRuns, ARankThatDiesEndsTheRun) {
  NEEDS_MPIRUN();
  const std::vector<std::string> keys = {"zero=1", "lr_scheduler_type=constant", "warmup_steps=0"};
  for (const size_t victim : {size_t{0}, size_t{1}}) {
    const Workspace w;
    Child child(w.train_arguments("run", mpi(joined(keys, {"save_steps=2", "max_steps=100000"}))),
                test::mpirun_words(2));
    ASSERT_TRUE(child.read_until("step      5/"));
    const std::vector<pid_t> ranks = processes_of(child.pid());
    ASSERT_EQ(ranks.size(), 2u);
    const auto began = std::chrono::steady_clock::now();
    kill(ranks[victim], SIGKILL);
    const Outcome o = child.finish();
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
    EXPECT_NE(o.code, 0);
    EXPECT_NE(o.err.find("rank " + std::to_string(victim) + ": its process"), std::string::npos)
        << o.err;
    for (const pid_t pid : ranks) EXPECT_TRUE(ends_soon(pid)) << pid;
    const std::vector<int> saved = complete_checkpoints(w, "run");
    ASSERT_FALSE(saved.empty());
    const std::string end = "max_steps=" + std::to_string(saved.back() + 3);
    trained(w, "run", mpi(joined(keys, {"resume=latest", "save_steps=100000", end})));
    w.trained("whole", local(joined(keys, {"save_steps=100000", end})));
    expect_same_bytes(w, "run", "whole", "final/model.safetensors");
  }
}

// Whichever stands still is waited for as long as ddp_timeout says.
TEST(MpiRuns, ARankThatHangsIsNamed) {
  NEEDS_MPIRUN();
  for (const size_t victim : {size_t{0}, size_t{1}}) {
    const Workspace w;
    Child child(w.train_arguments("run", mpi({"ddp_timeout=2.5s", "max_steps=100000"})),
                test::mpirun_words(2));
    ASSERT_TRUE(child.read_until("step      3/"));
    const std::vector<pid_t> ranks = processes_of(child.pid());
    ASSERT_EQ(ranks.size(), 2u);
    kill(ranks[victim], SIGSTOP);
    const Outcome o = child.finish();
    EXPECT_NE(o.code, 0);
    EXPECT_NE(o.err.find("rank " + std::to_string(victim) + ": it did not come to"),
              std::string::npos)
        << o.err;
    for (const pid_t pid : ranks) EXPECT_TRUE(ends_soon(pid)) << pid;
  }
}

// What all ranks would say is said once, with the exit code of one process; another seed on one of them is
// no run of all.
TEST(MpiRuns, WhatIsWrongIsSaidOnce) {
  NEEDS_MPIRUN();
  const Workspace w;
  Child child(w.train_arguments("run", mpi({"train_data=" + w.path("no-such-file.txt")})),
              test::mpirun_words(2));
  const Outcome o = child.finish();
  EXPECT_EQ(o.code, 2) << o.err;
  const size_t first = o.err.find("expected a file, folder or pattern");
  ASSERT_NE(first, std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("expected", first + 1), std::string::npos) << o.err;
  EXPECT_FALSE(exists(w.path("run")));
  std::vector<std::string> words = w.train_arguments("other", mpi({"seed=1"}));
  words.insert(words.end(), {":", "-n", "1", program_under_test()});
  for (const std::string& word : w.train_arguments("other", mpi({"seed=2"}))) words.push_back(word);
  Child apart(words, test::mpirun_words(1));
  const Outcome other = apart.finish();
  EXPECT_NE(other.code, 0);
  EXPECT_NE(other.err.find("all ranks at the same collective"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("rank 0 at the plan"), std::string::npos) << other.err;
}

// Open MPI is loaded when a run first wants it.
TEST(MpiLibraries, OneThatIsAbsentOrAnothersIsRefused) {
  const Workspace w;
  std::string words;
  for (const std::string& word : w.train_arguments("run", mpi({}))) words += " '" + word + "'";
  const std::string rank = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 ";
  const Outcome none = shell(rank + "SNUG_LIBMPI=/nowhere/libmpi.so.40 $SNUG" + words);
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("usage: expected Open MPI (libmpi.so.40) for transport: mpi\n"
                          "  found: /nowhere/libmpi.so.40: cannot open"),
            std::string::npos)
      << none.err;
  EXPECT_NE(none.err.find("Debian, Ubuntu: openmpi-bin"), std::string::npos) << none.err;
  const Outcome other = shell(rank + "SNUG_LIBMPI=libm.so.6 $SNUG" + words);
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("libm.so.6 without MPI_Init_thread: another MPI"), std::string::npos)
      << other.err;
}

// Variables of a launcher that MPI knows nothing of.
TEST(MpiLibraries, ALauncherOfAnotherKindIsRefused) {
  NEEDS_MPIRUN();
  const Workspace w;
  std::string words;
  for (const std::string& word : w.train_arguments("run", mpi({}))) words += " '" + word + "'";
  const Outcome o = shell("RANK=1 WORLD_SIZE=2 $SNUG" + words);
  EXPECT_EQ(o.code, 2) << o.err;
  EXPECT_NE(o.err.find("expected 2 ranks that Open MPI"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("0 of 1: they were started by another launcher"), std::string::npos)
      << o.err;
}

}  // namespace
}  // namespace snug::e2e
