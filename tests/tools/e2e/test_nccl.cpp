// Ranks on devices, whose tensors NCCL moves: emulated kernels and a fake of it, which is what a machine without
// GPUs can show. The arenas are closed to the host, as those of GPUs are.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/folders.h"
#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

const std::string kFakeNccl = binary_folder() + "/lib/libsnug_fake_nccl.so";

const std::vector<std::string> kSmall = {
    "model={type: gpt2, n_layer: 2, n_embd: 16, n_head: 2, n_positions: 24, resid_pdrop: 0.1, "
    "embd_pdrop: 0.1, attn_pdrop: 0.1}",
    "max_length=16",
    "global_batch_size=4",
    "per_device_train_batch_size=1",
    "max_steps=4",
    "eval_fraction=0.05",
    "max_eval_samples=2",
    "save_steps=2",
    "threads=1",
    "device=emu"};

std::vector<std::string> emu(const std::vector<std::string>& more) {
  return joined(kSmall, more);
}

// Planned to the byte on every rank, at every stage the same.
TEST(NcclRuns, EveryStageLearnsTheSame) {
  const Workspace w;
  const Environment library("SNUG_LIBNCCL", kFakeNccl);
  w.trained("one", emu({}));
  for (const char* zero : {"zero=0", "zero=1", "zero=2", "zero=3"}) {
    const Outcome o = w.trained(zero, emu({"ranks=2", zero}));
    EXPECT_NE(o.out.find("ranks exchange by NCCL: sums wait in buffers of"), std::string::npos)
        << o.out;
    EXPECT_EQ(w.json(std::string(zero) + "/plan.json")["decisions"]["transport"], "nccl");
    for (const std::string& folder : {std::string(zero), std::string(zero) + "/ranks/1"}) {
      expect_exact(w, folder);
      const Json memory = w.json(folder + "/memory.json");
      if (!program_has_sanitizer()) {  // whose own memory is no part of a plan
        EXPECT_LE(memory["measured_runtime_bytes"], memory["planned_runtime_bytes"]);
      }
      EXPECT_EQ(w.losses(folder), w.losses(zero));
    }
    // In a window of two micro-steps stages 2 and 3 add them after ranks are.
    const char* const like = zero[5] < '2' ? "zero=0" : "zero=2";
    expect_same_bytes(w, zero, like, "final/model.safetensors");
    expect_same_tensors(w, zero, like, "checkpoint-4/optimizer.safetensors");
    const std::vector<double> one = w.losses("one"), all = w.losses(zero);
    ASSERT_EQ(all.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(all[i] / one[i], 1, 1e-6) << i;
  }
}

// Each rank's host updates its piece (ZeRO-Offload), and has its weights (ZeRO-Infinity's second tier).
TEST(NcclRuns, TheHostOfEachUpdatesItsPiece) {
  const Workspace w;
  const Environment library("SNUG_LIBNCCL", kFakeNccl);
  for (const char* zero : {"zero=1", "zero=2", "zero=3"}) {
    const std::string name(zero), away = name + "away";
    const auto here = emu({"ranks=2", zero, "precision=bf16"});
    const auto host = joined(here, {"offload_update=cpu", "offload_params=cpu"});
    w.trained(name, here);
    const Outcome o = w.trained(away, host);
    EXPECT_NE(o.out.find("the host updates: "), std::string::npos) << o.out;
    for (const std::string& folder : {away, away + "/ranks/1"}) expect_exact_with_host(w, folder);
    expect_same_bytes(w, away, name, "final/model.safetensors");
    expect_same_tensors(w, away, name, "checkpoint-4/optimizer.safetensors");
    lose_power_after(w, name, "on", 2);
    w.trained("on", joined(emu({"ranks=2", zero, "precision=bf16", "offload_update=cpu"}),
                           {"resume=latest"}));
    expect_same_bytes(w, "on", name, "final/model.safetensors");
    std::filesystem::remove_all(w.path("on"));
  }
}

// Of adapters alone there is no table of tokens whose sum lands the one before it.
TEST(NcclRuns, AdaptersLearnTheSameAtEveryStage) {
  const Workspace w;
  const Environment library("SNUG_LIBNCCL", kFakeNccl);
  w.trained("base", {"max_steps=2"});
  const std::vector<std::string> keys = {"model=" + w.path("base/final"),
                                         "peft=lora",
                                         "lora_r=2",
                                         "target_modules=all-linear",
                                         "max_length=16",
                                         "global_batch_size=4",
                                         "per_device_train_batch_size=1",
                                         "max_steps=2",
                                         "threads=1",
                                         "device=emu",
                                         "ranks=2"};
  for (const char* zero : {"zero=0", "zero=1", "zero=2", "zero=3"}) {
    w.trained(zero, joined(keys, {zero}));
    expect_exact(w, zero);
    const char* const like = zero[5] < '2' ? "zero=0" : "zero=2";
    expect_same_bytes(w, zero, like, "final/adapter_model.safetensors");
  }
}

// A checkpoint is one of the model.
TEST(NcclRuns, GoOnAtAnotherStageAndAnotherNumberOfRanks) {
  const Workspace w;
  const Environment library("SNUG_LIBNCCL", kFakeNccl);
  const std::vector<std::string> keys = {"precision=fp16", "optim=adamw_8bit"};
  w.trained("whole", emu(joined(keys, {"ranks=3", "zero=3", "global_batch_size=3"})));
  w.trained("run", emu(joined(keys, {"ranks=3", "zero=3", "global_batch_size=3"})));
  lose_power_after(w, "run", "on", 2);
  w.trained("on", emu(joined(keys, {"ranks=3", "zero=1", "global_batch_size=3", "resume=latest"})));
  expect_same_bytes(w, "on", "whole", "final/model.safetensors");
  expect_same_tensors(w, "on", "whole", "checkpoint-4/optimizer.safetensors");
  lose_power_after(w, "run", "one", 2);
  w.trained("one", emu(joined(keys, {"global_batch_size=3", "resume=latest"})));
  const std::vector<double> one = w.losses("one"), all = w.losses("whole");
  ASSERT_EQ(all.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(all[i] / one[i], 1, 2e-3) << i;
}

// Named, whatever it was at; the others end, and what was saved is whole.
TEST(NcclRuns, ARankThatDiesOrHangsEndsTheRun) {
  const Environment library("SNUG_LIBNCCL", kFakeNccl);
  for (const int signal : {SIGKILL, SIGSTOP}) {
    const Workspace w;
    Child child(w.train_arguments(
        "run", emu({"ranks=2", "zero=2", "save_steps=1", "ddp_timeout=2.5s", "max_steps=100000"})));
    ASSERT_TRUE(child.read_until("step      3/"));
    const std::vector<pid_t> ranks = processes_of(child.pid());
    ASSERT_EQ(ranks.size(), 2u);
    kill(ranks[1], signal);
    EXPECT_TRUE(ends_soon(ranks[0]));
    kill(ranks[1], SIGCONT);
    const Outcome o = child.finish();
    EXPECT_EQ(o.code, 1);
    EXPECT_NE(o.err.find("rank 1: "), std::string::npos) << o.err;
    EXPECT_NE(o.err.find("expected all 2 ranks to go on"), std::string::npos) << o.err;
    const std::vector<int> saved = complete_checkpoints(w, "run");
    ASSERT_FALSE(saved.empty());
    w.trained("run", emu({"ranks=2", "zero=2", "resume=latest",
                          "max_steps=" + std::to_string(saved.back() + 1)}));
  }
}

// What NCCL says of a peer ends all ranks with it.
TEST(NcclRuns, WhatNcclSaysEndsTheRun) {
  const Workspace w;
  const Environment library("SNUG_LIBNCCL", kFakeNccl), fails("FAKE_NCCL_FAILS", "25"),
      on("FAKE_NCCL_FAILS_ON", "1");
  const Outcome o = w.train("run", emu({"ranks=2"}));
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("rank 1: NCCL at "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("remote process exited"), std::string::npos) << o.err;
}

// All ranks would say so.
TEST(NcclRuns, ALibraryThatIsAbsentIsSaidOnce) {
  const Workspace w;
  const Environment library("SNUG_LIBNCCL", "/nowhere/libnccl.so.2");
  const Outcome o = w.train("run", emu({"ranks=2"}));
  EXPECT_EQ(o.code, 2);
  const size_t first = o.err.find("expected NCCL 2.18 or later (libnccl.so.2) for ranks on GPUs");
  ASSERT_NE(first, std::string::npos) << o.err;
  EXPECT_EQ(o.err.find("expected", first + 1), std::string::npos) << o.err;
  EXPECT_FALSE(exists(w.path("run")));
}

}  // namespace
}  // namespace snug::e2e
