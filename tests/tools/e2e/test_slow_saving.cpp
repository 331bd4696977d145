// Checkpoints on a slow disk: what a run that breaks off waits for, and what it says of its waiting.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

const std::vector<std::string> kSaving = {"save_steps=4", "eval_steps=4"};

// What breaks off is not the checkpoint: the one under way is waited for, is whole, and is named.
TEST(SlowSaving, ARunThatBreaksOffWaitsForTheCheckpointUnderWay) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("whole", kSaving);
  {
    const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", ".safetensors.tmp"),
        slow("BAD_WORLD_SLOW", "0.01"), full("BAD_WORLD_THEN_FULL", "metrics.jsonl");
    const Outcome o = w.train("full", kSaving);
    EXPECT_EQ(o.code, 1) << o.out;
    EXPECT_NE(o.err.find("metrics.jsonl"), std::string::npos) << o.err;
    EXPECT_NE(o.err.find("\n  found: No space left on device"), std::string::npos) << o.err;
    EXPECT_NE(o.out.find("the last complete checkpoint is " + w.path("full/checkpoint-4")),
              std::string::npos)
        << o.out;
  }
  EXPECT_EQ(complete_checkpoints(w, "full"), (std::vector<int>{4}));
  w.trained("full", joined(kSaving, {"resume=latest"}));
  expect_same_run(w, "whole", "full");
}

// A run whose steps wait for every write has waited that long for all checkpoints together.
TEST(SlowSaving, StallsAreThoseOfAllCheckpoints) {
  NEEDS_PRELOAD();
  const Workspace w;
  const std::string log = w.path("calls");
  {
    const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", ".safetensors.tmp"),
        slow("BAD_WORLD_SLOW", "0.002"), calls("BAD_WORLD_CALLS", log);
    w.trained("run", {"save_steps=3", "save_buffer=0"});
  }
  int writes = 0;
  std::istringstream lines(slurp(log));
  for (std::string line; std::getline(lines, line);)
    writes += line.starts_with("write ") && line.find("/checkpoint-") != std::string::npos &&
              line.find(".safetensors.tmp") != std::string::npos;
  const Json saved = w.json("run/memory.json")["checkpoints"];
  EXPECT_EQ(saved["written"], 4);
  ASSERT_GE(writes, 8);
  EXPECT_GE(saved["write_seconds"].get<double>(), 0.002 * writes);
  EXPECT_GE(saved["stall_seconds"].get<double>(), 0.002 * writes);
}

}  // namespace
}  // namespace snug::e2e
