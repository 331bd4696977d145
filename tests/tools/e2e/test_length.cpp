// How long a run is, and how it is stopped.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {
namespace {

int last_step(const Workspace& w, const std::string& name) {
  return w.metrics(name).back()["step"].get<int>();
}

// The tail of N tokens in windows of T; the samples of an epoch are said before the run starts.
int said_samples(const Outcome& outcome) {
  const size_t at = outcome.out.find(" samples of 32 tokens to train on");
  if (at == std::string::npos) return -1;
  return std::stoi(outcome.out.substr(outcome.out.rfind(' ', at - 1) + 1));
}

TEST(SlowLength, EpochsAreStepsRoundedUp) {
  const Workspace w;
  spill(w.path("tokens.bin"), raw_tokens(numbered_tokens(32 * 40 + 1, 300)));
  const std::vector<std::string> base = {"train_data=" + w.path("tokens.bin"), "eval_fraction=0",
                                         "max_steps=null"};
  const struct {
    std::vector<std::string> keys;
    int steps;
  } rows[] = {
      {{"num_train_epochs=1"}, 7},                 // 40 samples in batches of 6
      {{"num_train_epochs=3"}, 20},                // 120 of 6
      {{"num_train_epochs=0.3"}, 2},               // 12 of 6
      {{"num_train_epochs=0.01"}, 1},              // never none
      {{}, 7},                                     // one epoch if nothing is said
      {{"num_train_epochs=3", "max_steps=5"}, 5},  // whichever comes first
      {{"num_train_epochs=1", "max_steps=50"}, 7},
      {{"num_train_epochs=1e18", "max_steps=5"}, 5},
      {{"num_train_epochs=1", "global_batch_size=40"}, 1},
  };
  int number = 0;
  for (const auto& row : rows) {
    const std::string name = "run" + std::to_string(number++);
    std::vector<std::string> keys = base;
    keys.insert(keys.end(), row.keys.begin(), row.keys.end());
    EXPECT_EQ(said_samples(w.trained(name, keys)), 40);
    EXPECT_EQ(last_step(w, name), row.steps) << number;
  }
  EXPECT_NEAR(w.metrics("run1").back()["epoch"].get<double>(), 3.0, 1e-6);
}

TEST(Length, MaxTimeStops) {
  const Workspace w;
  const auto start = std::chrono::steady_clock::now();
  w.trained("run", {"max_steps=100000000", "max_time=0.4s", "logging_steps=1000000"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), 0.4);
  EXPECT_LT(took.count(), 20);
  EXPECT_TRUE(exists(w.path("run/final/model.safetensors")));
  EXPECT_EQ(w.losses("run").size(), 1u) << "the last step is logged";
  EXPECT_TRUE(
      exists(w.path("run/checkpoint-" + std::to_string(last_step(w, "run")) + "/COMPLETE")));
  EXPECT_EQ(w.json("run/memory.json")["allocations_after_start"], no_allocations());
}

// By the clock alone the schedule follows the clock: a step has the rate of the share of the time
// that is over where it begins, which is between the ends of the step before and of itself. A
// machine that holds the run up holds the rate up with it.
TEST(Length, ByTheClockTheRateFollowsIt) {
  const Workspace w;
  w.trained("clock", {"max_steps=null", "max_time=0.3s", "eval_steps=0", "warmup_steps=0",
                      "lr_scheduler_type=linear"});
  const auto at = [](double seconds) { return 0.01 * std::max(0.0, 1 - seconds / 0.3); };
  // Of the time that a line has in milliseconds, and of a schedule of 1000 steps.
  const double rounded = 0.01 * (0.0005 / 0.3 + 1e-3) + 1e-9;
  double before = 0, elapsed = 0;
  for (const Json& line : w.metrics("clock")) {
    if (!line.contains("loss")) continue;
    elapsed = line["elapsed_seconds"].get<double>();
    const double rate = line["learning_rate"].get<double>();
    EXPECT_LE(rate, at(before) + rounded) << line;
    EXPECT_GE(rate, at(elapsed) - rounded) << line;
    before = elapsed;
  }
  EXPECT_GE(elapsed, 0.2995) << "to its end";
}

TEST(Signals, InterruptWritesACheckpoint) {
  const Workspace w;
  Child child(w.train_arguments("run", {"max_steps=100000"}));
  ASSERT_TRUE(child.read_until("step      2/"));
  child.send(SIGINT);
  const Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 75);
  EXPECT_NE(outcome.out.find("To go on: snug train"), std::string::npos);
}

std::string quoted(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += " '" + word + "'";
  return text;
}

// The exit code, as a line, of a run whose output goes where `behind` says.
std::string code_behind(const Workspace& w, const std::string& name,
                        const std::vector<std::string>& more, const std::string& behind) {
  shell("{ \"$SNUG\"" + quoted(w.train_arguments(name, more)) + "; echo $? > '" +
        w.path(name + ".code") + "'; } " + behind);
  return slurp(w.path(name + ".code"));
}

// `snug train | head` reads a line and goes; what learns goes on.
TEST(Signals, AReaderThatGoesEarlyEndsNoRun) {
  const Workspace w;
  const auto unheard = [&](const std::string& name, const std::vector<std::string>& more,
                           const std::string& behind) {
    return code_behind(w, name, more, behind);
  };
  EXPECT_EQ(unheard("out", {}, "| head -n 1"), "0\n");
  EXPECT_EQ(unheard("both", {}, "2>&1 | head -n 1"), "0\n");
  EXPECT_EQ(unheard("closed", {}, ">&- 2>&-"), "0\n");
  for (const std::string name : {"out", "both", "closed"}) {
    EXPECT_TRUE(exists(w.path(name + "/final/model.safetensors"))) << name;
    EXPECT_EQ(w.losses(name).size(), 12u) << name << ": nothing else in its files";
  }
  // Nor does it make another failure of one.
  EXPECT_EQ(
      unheard("fails", {"learning_rate=1e30", "lr_scheduler_type=constant", "max_grad_norm=0"},
              "2>&1 | head -n 1"),
      "1\n");
  EXPECT_EQ(w.json("fails/memory.json")["finished"], false);
}

// A full disk is another matter: what was to be kept is not.
TEST(Signals, OutputThatFindsNoRoomIsAnError) {
  if (!exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const Workspace w;
  EXPECT_EQ(code_behind(w, "full", {}, "> /dev/full 2> '" + w.path("full.err") + "'"), "1\n");
  EXPECT_EQ(slurp(w.path("full.err")),
            "device: expected standard output that can be written\n  found: that it cannot\n"
            "  try:   free space where it goes, or send it to another place\n");
  EXPECT_TRUE(exists(w.path("full/final/model.safetensors")));
}

// Ctrl-C under `snug train | tee log` ends tee first.
TEST(Signals, AnInterruptWithoutAReaderWritesACheckpoint) {
  const Workspace w;
  Child child(w.train_arguments("run", {"max_steps=100000"}));
  ASSERT_TRUE(child.read_until("step      2/"));
  child.stop_reading();
  child.send(SIGINT);
  const Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 75);
  EXPECT_EQ(outcome.err, "");
  EXPECT_TRUE(
      exists(w.path("run/checkpoint-" + std::to_string(last_step(w, "run")) + "/COMPLETE")));
}

TEST(Signals, ASecondOneStopsAtOnce) {
  const Workspace w;
  Child child(w.train_arguments("run", {"max_steps=100000"}));
  ASSERT_TRUE(child.read_until("step      2/"));
  ASSERT_TRUE(child.waits());  // in the middle of a step, which it cannot finish unread
  child.send(SIGINT);
  EXPECT_FALSE(child.ends_unread(50));
  child.send(SIGINT);
  EXPECT_TRUE(child.ends_unread(20000));
  const Outcome outcome = child.finish();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.out.find("To go on"), std::string::npos);
  // Nothing half-written has a final name.
  for (const std::string& name : listing(w.path("run")))
    EXPECT_EQ(name.rfind("checkpoint-", 0), std::string::npos) << name;
}

}  // namespace
}  // namespace snug::e2e
