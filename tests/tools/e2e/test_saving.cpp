// Checkpoints in a world where things go wrong: the disk is full, slow or gone, the clock is set
// back, signals come while something is written. Every time: a message that says what, the last
// complete checkpoint as it was, and a resume that has the bits of a run to which nothing happened.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kSaving = {"save_steps=4", "eval_steps=4"};

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin " << text;
}

// Goes on with no more trouble, to the bits of `whole`.
void expect_good_resume(const Workspace& w, const std::string& name,
                        const std::vector<std::string>& keys = kSaving) {
  const Outcome resumed = w.trained(name, joined(keys, {"resume=latest"}));
  EXPECT_NE(resumed.out.find("resumed from "), std::string::npos) << resumed.out;
  expect_same_run(w, "whole", name);
  expect_planned_is_measured(w, name);
}

// What a checkpoint holds but for the time that training took.
void expect_same_checkpoint(const Workspace& w, const std::string& a, const std::string& b) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    SCOPED_TRACE(a + " " + b + " " + file);
    expect_same_tensors(w, a, b, file);
  }
  EXPECT_TRUE(slurp(w.path(a + "/config.json")) == slurp(w.path(b + "/config.json"))) << a << b;
}

TEST(SlowSaving, InTheBackgroundTheBytesAreThoseOfWaiting) {
  const Workspace w;
  const std::vector<std::string> each = {"save_steps=1", "threads=2", "eval_steps=5"};
  const Outcome waits = w.trained("waits", joined(each, {"save_buffer=0"}));
  expect_parts(waits.out, {"training waits while it is written", "  saved " + w.path("waits")});
  for (const char* buffer : {"auto", "4KiB", "20KiB", "64MiB"}) {
    const Outcome o =
        w.trained("back", joined(each, {std::string("save_buffer=") + buffer, "overwrite=true"}));
    expect_parts(o.out, {"it is written in the background through ",
                         "saved " + w.path("back/checkpoint-12")});
    for (int step = 1; step <= 12; ++step) {
      const std::string folder = "/checkpoint-" + std::to_string(step);
      expect_same_checkpoint(w, "waits" + folder, "back" + folder);
    }
    EXPECT_EQ(complete_checkpoints(w, "back").size(), 12u);
    expect_planned_is_measured(w, "back");
    const Json saved = w.json("back/memory.json")["checkpoints"];
    EXPECT_EQ(saved["written"], 12);
    EXPECT_GE(saved["write_seconds"].get<double>(), 0);
    EXPECT_GE(saved["stall_seconds"].get<double>(), 0);
  }
  // final/ is written by other code.
  EXPECT_TRUE(slurp(w.path("back/final/model.safetensors")) ==
              slurp(w.path("back/checkpoint-12/model.safetensors")));
  expect_planned_is_measured(w, "waits");
}

TEST(Saving, ThePlanSaysWhatACheckpointCosts) {
  const Workspace w;
  const Json usual = w.plan()["checkpoints"], none = w.plan({"save_buffer=0"})["checkpoints"],
             small = w.plan({"save_buffer=8KiB"})["checkpoints"];
  const auto bytes = w.plan()["checkpoint_bytes"].get<double>();
  EXPECT_EQ(usual["background"], true);
  EXPECT_EQ(usual["disk_bytes_per_second"], 5e8);
  EXPECT_DOUBLE_EQ(usual["predicted_seconds"], bytes / 5e8);
  EXPECT_EQ(usual["predicted_stall_seconds_at_most"], 0.0) << "the ring holds all of it";
  EXPECT_GE(usual["ring_bytes"], bytes);
  EXPECT_LT(usual["ring_bytes"], bytes + 4096);
  EXPECT_EQ(none["background"], false);
  EXPECT_DOUBLE_EQ(none["predicted_stall_seconds_at_most"], bytes / 5e8);
  EXPECT_EQ(small["ring_bytes"], 8192);
  EXPECT_LE(small["predicted_stall_seconds_at_most"].get<double>(), (bytes - 8192) / 5e8 + 1e-12);
  // The ring is memory of the plan.
  EXPECT_EQ(w.plan()["engine_bytes"].get<int64_t>() -
                w.plan({"save_buffer=8KiB"})["engine_bytes"].get<int64_t>(),
            usual["ring_bytes"].get<int64_t>() - 8192);
}

// What the plan says of a checkpoint's size is what its tensors take on disk, in whatever form states
// rest.
TEST(Saving, ThePlanCountsTheBytesOfACheckpoint) {
  const Workspace w;
  for (const std::vector<std::string>& keys : {std::vector<std::string>{"optim=adamw"},
                                               {"optim=adamw_8bit"},
                                               {"optim=lion_4bit"},
                                               {"optim=adamw", "optim_state=bf16"},
                                               {"optim=adafactor"},
                                               {"optim=adam_mini"}}) {
    SCOPED_TRACE(keys.back());
    const std::vector<std::string> all =
        joined(keys, {"max_steps=1", "eval_fraction=0", "save_steps=1"});
    w.trained("run", joined(all, {"overwrite=true"}));
    int64_t bytes = 0;
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      const std::string file = slurp(w.path(std::string("run/checkpoint-1/") + name));
      uint64_t header = 0;
      std::memcpy(&header, file.data(), 8);
      bytes += static_cast<int64_t>(file.size() - 8 - header);
    }
    EXPECT_EQ(w.plan(all)["checkpoint_bytes"], bytes);
  }
}

// Runs `fast`, whose steps wait for their checkpoints, and `slow`, whose writes take longer than the steps
// between them: a checkpoint waits for the one before, an update for what it would change, and every
// one holds the bits of its step.
void expect_checkpoints_of_a_slow_disk(const Workspace& w, const std::vector<std::string>& keys) {
  const std::vector<std::string> each = joined({"save_steps=1", "save_buffer=64KiB"}, keys);
  w.trained("fast", joined(each, {"save_buffer=0"}));
  const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", ".safetensors.tmp"),
      slow("BAD_WORLD_SLOW", "0.004");
  w.trained("slow", each);
  EXPECT_EQ(w.curve("slow"), w.curve("fast"));
  for (int step = 1; step <= 12; ++step) {
    const std::string folder = "/checkpoint-" + std::to_string(step);
    expect_same_checkpoint(w, "fast" + folder, "slow" + folder);
  }
}

TEST(SlowSaving, OnASlowDiskEveryCheckpointHoldsItsStep) {
  NEEDS_PRELOAD();
  const Workspace w;
  expect_checkpoints_of_a_slow_disk(w, {});
  const Json saved = w.json("slow/memory.json")["checkpoints"];
  EXPECT_GT(saved["stall_seconds"].get<double>(), 0.05);
  expect_planned_is_measured(w, "slow");
}

// Sums over rows and columns of a matrix are states too; and of several ranks the updates, and what is
// gathered of them, wait for the one that writes.
TEST(SlowSaving, OnASlowDiskSumsAndRanksWaitToo) {
  NEEDS_PRELOAD();
  for (const std::vector<std::string>& keys : {std::vector<std::string>{"optim=adafactor"},
                                               {"optim=muon"},
                                               {"optim=adam_mini"},
                                               {"ranks=2", "threads=1", "zero=1"},
                                               {"ranks=2", "threads=1", "zero=3"}}) {
    SCOPED_TRACE(keys.back());
    const Workspace w;
    expect_checkpoints_of_a_slow_disk(w, keys);
  }
}

TEST(Saving, TheBestIsKeptAndLoadedAtTheEnd) {
  const Workspace w;
  // Held out are tokens that are never trained: the more is learned the less likely they are.
  std::vector<uint16_t> others = numbered_tokens(2000, 100);
  for (uint16_t& id : others) id = static_cast<uint16_t>(id + 150);
  spill(w.path("ids.bin"), raw_tokens(numbered_tokens(3000, 100)));
  spill(w.path("eval.bin"), raw_tokens(others));
  const std::vector<std::string> keys = {"train_data=" + w.path("ids.bin"),
                                         "eval_data=" + w.path("eval.bin"),
                                         "eval_fraction=0",
                                         "eval_steps=2",
                                         "save_steps=6",
                                         "save_total_limit=2"};
  const Outcome o = w.trained("whole", joined(keys, {"load_best_model_at_end=true"}));
  double best = 1e9;
  int step = -1;
  for (const Json& line : w.metrics("whole"))
    if (line.contains("eval_loss") && line["step"] > 0 && line["eval_loss"] < best) {
      best = line["eval_loss"];
      step = line["step"];
    }
  ASSERT_LT(step, 12) << "a run whose last step is not its best";
  const std::string folder = "whole/checkpoint-" + std::to_string(step);
  expect_parts(o.out, {"Best model: " + w.path(folder) + " with a validation loss of",
                       "final/ holds its weights"});
  EXPECT_EQ(complete_checkpoints(w, "whole"), (std::vector<int>{step, 12}));
  EXPECT_TRUE(slurp(w.path("whole/final/model.safetensors")) ==
              slurp(w.path(folder + "/model.safetensors")));
  EXPECT_FALSE(slurp(w.path("whole/final/model.safetensors")) ==
               slurp(w.path("whole/checkpoint-12/model.safetensors")));
  const Json state = w.json("whole/trainer_state.json");
  EXPECT_EQ(state["best_model_checkpoint"], w.path(folder));
  EXPECT_EQ(state["best_global_step"], step);
  expect_planned_is_measured(w, "whole");

  // Interrupted after the best, the run knows it and keeps it.
  Child child(w.train_arguments("parts", joined(keys, {"load_best_model_at_end=true"})));
  char line[32];
  std::snprintf(line, sizeof line, "step %6d/12", step + 1);
  ASSERT_TRUE(child.read_until(line));
  child.send(SIGTERM);
  EXPECT_EQ(child.finish().code, 75);
  w.trained("parts", joined(keys, {"load_best_model_at_end=true", "resume=latest"}));
  expect_same_run(w, "whole", "parts");
  EXPECT_EQ(complete_checkpoints(w, "parts"), complete_checkpoints(w, "whole"));

  // Without it the last weights are the result; the best of what is saved still stays.
  const Outcome plain =
      w.trained("plain", joined(keys, {"metric_for_best_model=eval_perplexity", "save_steps=2"}));
  EXPECT_EQ(plain.out.find("Best model"), std::string::npos);
  EXPECT_EQ(complete_checkpoints(w, "plain"), (std::vector<int>{step, 12}));
  EXPECT_TRUE(slurp(w.path("plain/final/model.safetensors")) ==
              slurp(w.path("plain/checkpoint-12/model.safetensors")));
  // The losses of metrics.jsonl have 9 digits: half a unit of the 8th decimal, through exp.
  const double perplexity = std::exp(best);
  EXPECT_NEAR(w.json("plain/trainer_state.json")["best_metric"].get<double>(), perplexity,
              6e-9 * perplexity);
  // One that is gone is said, and one that was changed is not loaded.
  fs::copy(w.path("whole"), w.path("gone"), fs::copy_options::recursive);
  fs::remove_all(w.path("gone/checkpoint-" + std::to_string(step)));
  const Outcome gone =
      w.trained("gone", joined(keys, {"load_best_model_at_end=true", "resume=latest"}));
  expect_parts(gone.out, {"the best one so far, is gone"});
  flip_bit(w.path(folder + "/model.safetensors"), -100);
  const Outcome changed =
      w.trained("whole", joined(keys, {"load_best_model_at_end=true", "resume=latest"}));
  expect_parts(changed.out, {folder + "/model.safetensors is not as it was written",
                             "final/ holds the last weights"});
}

// A step so large that what it leaves is no number: its evaluation is no result, and what was best
// before stays that.
TEST(Saving, AnEvaluationThatIsNoNumberIsNotTheBest) {
  const Workspace w;
  const std::vector<std::string> keys = {"lr_scheduler_type=constant", "eval_steps=4",
                                         "save_steps=4", "load_best_model_at_end=true"};
  w.trained("run", joined(keys, {"max_steps=4"}));
  fs::copy(w.path("run"), w.path("patient"), fs::copy_options::recursive);
  const std::string best = slurp(w.path("run/checkpoint-4/model.safetensors"));
  const Json metric = w.json("run/trainer_state.json")["best_metric"];
  const std::vector<std::string> wild = {"resume=latest", "learning_rate=1e30", "max_steps=5"};
  const Outcome o = w.trained("run", joined(keys, wild));
  const Json last = w.metrics("run").back();
  ASSERT_TRUE(last.contains("eval_loss") && last["eval_loss"].is_null()) << last;
  expect_parts(o.out, {"Best model: " + w.path("run/checkpoint-4")});
  EXPECT_TRUE(slurp(w.path("run/final/model.safetensors")) == best);
  EXPECT_FALSE(exists(w.path("run/checkpoint-5")));
  EXPECT_EQ(o.out.find("-nan"), std::string::npos) << o.out;
  const Json state = w.json("run/trainer_state.json");
  EXPECT_EQ(state["best_metric"], metric);
  EXPECT_EQ(state["best_model_checkpoint"], w.path("run/checkpoint-4"));
  // To early stopping it is one without a gain.
  const Outcome stops = w.trained(
      "patient",
      joined(keys, joined(wild, {"early_stopping_patience=1", "eval_steps=1", "max_steps=6"})));
  expect_parts(stops.out, {"Stopped early at step 5"});
  expect_planned_is_measured(w, "patient");
}

// Nor are such weights kept where the best are not there any more.
TEST(Saving, WeightsWithoutALossAreNotInFinal) {
  const Workspace w;
  const std::vector<std::string> keys = {"lr_scheduler_type=constant", "eval_steps=4",
                                         "save_steps=4", "load_best_model_at_end=true"};
  w.trained("run", joined(keys, {"max_steps=4"}));
  const std::string before = slurp(w.path("run/final/model.safetensors"));
  // A step more, worse and saved: the best is not what a resume needs.
  w.trained("run", joined(keys, {"resume=latest", "learning_rate=1", "max_steps=5"}));
  const std::string kept = slurp(w.path("run/final/model.safetensors"));
  EXPECT_TRUE(kept == before) << "both of checkpoint-4";
  std::string best = slurp(w.path("run/checkpoint-4/model.safetensors"));
  best.back() = static_cast<char>(best.back() ^ 1);
  spill(w.path("run/checkpoint-4/model.safetensors"), best);
  const Outcome o = w.train("run", joined(keys, {"resume=latest", "learning_rate=1e30",
                                                 "max_grad_norm=0", "max_steps=6"}));
  EXPECT_EQ(o.code, 1) << o.out << o.err;
  expect_parts(o.out, {"is not as it was written", "Training failed at step 6"});
  EXPECT_EQ(o.out.find("final/ holds"), std::string::npos) << o.out;
  EXPECT_TRUE(slurp(w.path("run/final/model.safetensors")) == kept);
}

// The file that is evaluated shrinks: its line, and what early stopping counts, come at the resume.
TEST(Saving, AnEvaluationThatWasBrokenOffIsDoneAtTheResume) {
  const Workspace w;
  spill(w.path("ids.bin"), raw_tokens(numbered_tokens(3000, 200)));
  spill(w.path("eval.bin"), raw_tokens(numbered_tokens(2000, 150)));
  for (const int at : {4, 12}) {
    const std::vector<std::string> keys = {"train_data=" + w.path("ids.bin"),
                                           "eval_data=" + w.path("eval.bin"),
                                           "eval_fraction=0",
                                           "save_steps=4",
                                           "eval_steps=4",
                                           "early_stopping_patience=5",
                                           "load_best_model_at_end=true"};
    if (!exists(w.path("whole"))) w.trained("whole", keys);
    const std::string name = "parts" + std::to_string(at);
    Child child(w.train_arguments(name, keys));
    char line[32];
    std::snprintf(line, sizeof line, "step %6d/12", at - 2);
    ASSERT_TRUE(child.read_until(line));
    ASSERT_TRUE(child.waits());
    fs::copy_file(w.path("eval.bin"), w.path("good.bin"), fs::copy_options::overwrite_existing);
    fs::resize_file(w.path("eval.bin"), 600);
    const Outcome lost = child.finish();
    EXPECT_EQ(lost.code, 1) << lost.out;
    expect_parts(lost.out, {"Stopped at step " + std::to_string(at) + "; saved "});
    expect_parts(lost.err, {w.path("eval.bin"), "\n  then:  snug train " + w.path("parts")});
    const Json state = w.json(name + "/checkpoint-" + std::to_string(at) + "/snug_state.json");
    EXPECT_EQ(state["evaluation_due"], true);
    EXPECT_EQ(w.json(name + "/memory.json")["finished"], false);
    EXPECT_TRUE(exists(w.path(name + "/report.html")));
    fs::copy_file(w.path("good.bin"), w.path("eval.bin"), fs::copy_options::overwrite_existing);
    expect_good_resume(w, name, keys);
    EXPECT_EQ(
        w.json(name + "/checkpoint-" + std::to_string(at) + "/snug_state.json")["evaluation_due"],
        false);
  }
}

// A limit on the size of files, which the optimizer's file exceeds.
TEST(Saving, AFileSizeLimitEndsTheRunAndNothingElse) {
  const Workspace w;
  w.trained("whole", kSaving);
  const auto most =
      static_cast<int64_t>(fs::file_size(w.path("whole/checkpoint-4/optimizer.safetensors")));
  ASSERT_GT(most, static_cast<int64_t>(fs::file_size(w.path("whole/report.html"))) + 8192);
  for (const char* buffer : {"save_buffer=auto", "save_buffer=0"}) {
    lose_power_after(w, "whole", "full", 4);
    {
      const FileSizeLimit limit(most - 4096);
      const Outcome o = w.train("full", joined(kSaving, {"resume=latest", buffer}));
      EXPECT_EQ(o.code, 1) << o.out;
      expect_parts(o.err, {"device: expected to write " + w.path("full/checkpoint-8"),
                           "optimizer.safetensors\n  found: File too large",
                           "\n  try:   raise the file size limit (ulimit -f unlimited)",
                           "\n  then:  snug train " + w.path("full")});
      expect_parts(o.out, {"the last complete checkpoint is " + w.path("full/checkpoint-4")});
    }
    EXPECT_EQ(complete_checkpoints(w, "full"), (std::vector<int>{4}));
    expect_good_resume(w, "full");
    fs::remove_all(w.path("full"));
  }
  // So small that the run cannot begin: nothing of it is touched.
  lose_power_after(w, "whole", "tiny", 4);
  {
    const FileSizeLimit limit(2048);
    const Outcome o = w.train("tiny", joined(kSaving, {"resume=latest"}));
    EXPECT_EQ(o.code, 1) << o.out;
    expect_parts(o.err, {"File too large"});
  }
  expect_good_resume(w, "tiny");
}

TEST(Saving, AFullDiskEndsTheRunAtTheNextStep) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("whole", kSaving);
  const auto size =
      static_cast<int64_t>(fs::file_size(w.path("whole/checkpoint-4/model.safetensors")) +
                           fs::file_size(w.path("whole/checkpoint-4/optimizer.safetensors")));
  // Written for the run, for its first checkpoint, and not for its second.
  const auto tokenizer =
      static_cast<int64_t>(fs::file_size(w.path("whole/tokenizer/tokenizer.json")));
  const std::pair<const char*, int64_t> rooms[] = {
      // Room for the first checkpoint and some of the second, at several places of it.
      {".safetensors.tmp", size},
      {".safetensors.tmp", size + 4000},
      {".safetensors.tmp", size + 70000},
      {".safetensors.tmp", 2 * size - 1},
      {"tokenizer.json.tmp", 3 * tokenizer - 1}};
  for (const auto& [part, room] : rooms) {
    fs::remove_all(w.path("full"));
    {
      const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", part),
          bytes("BAD_WORLD_ROOM", std::to_string(room));
      const Outcome o = w.train("full", kSaving);
      EXPECT_EQ(o.code, 1) << o.out;
      expect_parts(o.err, {"device: expected to write " + w.path("full/checkpoint-8"),
                           "\n  found: No space left on device", "\n  try:   free space",
                           "\n  then:  snug train "});
      expect_parts(o.out, {"the last complete checkpoint is " + w.path("full/checkpoint-4")});
    }
    EXPECT_EQ(complete_checkpoints(w, "full"), (std::vector<int>{4}));
    expect_good_resume(w, "full");
  }
}

TEST(Saving, ATokenizerThatIsGoneEndsTheRunAtTheNextCheckpoint) {
  const Workspace w;
  w.trained("whole", kSaving);
  Child child(w.train_arguments("run", kSaving));
  ASSERT_TRUE(child.read_until("step      6/12"));
  ASSERT_TRUE(child.waits());
  fs::remove(w.path("run/tokenizer/tokenizer.json"));
  const Outcome o = child.finish();
  EXPECT_EQ(o.code, 1) << o.out;
  expect_parts(o.err, {"device: expected to copy " + w.path("run/tokenizer") + " to ",
                       "\n  found: no tokenizer.json in it",
                       "\n  try:   leave the files of a run where they are while it goes",
                       "\n  then:  snug train "});
  EXPECT_EQ(o.err.find("tokenizer="), std::string::npos) << "of the copy that is gone: " << o.err;
  expect_good_resume(w, "run");
}

TEST(Saving, AFolderThatIsGoneIsMadeAnewWithWhatWasLearned) {
  const Workspace w;
  w.trained("whole", kSaving);
  for (const bool moved : {true, false}) {
    Child child(w.train_arguments("run", kSaving));
    ASSERT_TRUE(child.read_until("step      6/12"));
    ASSERT_TRUE(child.waits());
    if (moved)
      fs::rename(w.path("run"), w.path("aside"));
    else
      fs::remove_all(w.path("run"));
    const Outcome o = child.finish();
    EXPECT_EQ(o.code, 1) << o.out;
    expect_parts(o.err, {"device: expected output_dir " + w.path("run"),
                         "\n  found: it is gone: renamed, removed or unmounted since the start",
                         "\n  try:   put it back"});
    expect_parts(o.out,
                 {"output_dir was gone: saved " + w.path("run/checkpoint-8") + " in a new one"});
    if (moved) {
      EXPECT_EQ(complete_checkpoints(w, "aside"), (std::vector<int>{4}));
    }
    expect_good_resume(w, "run");
    fs::remove_all(w.path("run"));
  }
}

// Another user's folder, or a file system that turned read-only.
TEST(Saving, AFolderThatCannotBeWritten) {
  const Workspace w;
  std::vector<std::string> as_user;
  if (geteuid() == 0) {
    // Rights mean nothing to root: the run is another user's.
    as_user = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    if (!exists(as_user[0])) GTEST_SKIP() << "root, and no setpriv to be somebody else";
    if (shell("setpriv --reuid=65534 --regid=65534 --clear-groups $SNUG --version").code != 0)
      GTEST_SKIP() << "another user cannot run the program";
    chmod(w.path("").c_str(), 0777);
  }
  w.trained("whole", kSaving);
  Child child(w.train_arguments("run", kSaving), as_user);
  ASSERT_TRUE(child.read_until("step      6/12"));
  ASSERT_TRUE(child.waits());
  ASSERT_EQ(chmod(w.path("run").c_str(), 0555), 0);
  const Outcome o = child.finish();
  ASSERT_EQ(chmod(w.path("run").c_str(), 0777), 0);
  EXPECT_EQ(o.code, 1) << o.out;
  expect_parts(o.err, {"device: expected to create " + w.path("run/checkpoint-8.tmp"),
                       "\n  found: Permission denied", "\n  try:   check the rights"});
  expect_parts(o.out, {"the last complete checkpoint is " + w.path("run/checkpoint-4")});
  EXPECT_EQ(complete_checkpoints(w, "run"), (std::vector<int>{4}));
  expect_good_resume(w, "run");
}

// The clock on the wall jumps a day back in the middle: nothing but the stamps shows it.
TEST(Saving, AClockThatIsSetBackChangesNothing) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("whole", kSaving);
  {
    const Environment load("LD_PRELOAD", kBadWorld), clock("BAD_WORLD_CLOCK", "25");
    w.trained("back", joined(kSaving, {"max_time=1h"}));
  }
  expect_same_run(w, "whole", "back");
  expect_planned_is_measured(w, "back");
  double elapsed = 0;
  bool jumped = false;
  std::string stamp;
  for (const Json& line : w.metrics("back")) {
    jumped |= line["time"].get<std::string>() < stamp;
    stamp = line["time"].get<std::string>();
    if (!line.contains("loss")) continue;
    EXPECT_GE(line["elapsed_seconds"].get<double>(), elapsed);
    EXPECT_GT(line["step_seconds"].get<double>(), 0);
    elapsed = line["elapsed_seconds"];
  }
  EXPECT_TRUE(jumped) << "the test set it back";
  // And a resume whose clock is behind that of the run before.
  lose_power_after(w, "whole", "parts", 4);
  {
    const Environment load("LD_PRELOAD", kBadWorld), clock("BAD_WORLD_CLOCK", "0");
    w.trained("parts", joined(kSaving, {"resume=latest"}));
  }
  expect_same_run(w, "whole", "parts");
}

// In an evaluation that takes long: it is finished, and so is the step.
TEST(SlowSavingSignals, DuringAnEvaluation) {
  const Workspace w;
  const std::vector<std::string> keys = {"save_steps=8", "eval_steps=4", "eval_fraction=0.6",
                                         "per_device_eval_batch_size=1",
                                         "train_data=" + w.path("long.txt")};
  spill(w.path("long.txt"), sentences(6000, 1));
  w.trained("whole", keys);
  Child child(w.train_arguments("parts", keys));
  ASSERT_TRUE(child.read_until("step      4/12"));
  child.send(SIGTERM);
  const Outcome o = child.finish();
  EXPECT_EQ(o.code, 75) << o.out;
  expect_parts(o.out, {"step      4  validation loss", "Stopped at step 4; saved "});
  expect_good_resume(w, "parts", keys);
}

TEST(SlowSavingSignals, DuringAWrite) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("whole", kSaving);
  for (const int signals : {1, 2}) {
    const std::string name = "parts" + std::to_string(signals);
    {
      const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", "checkpoint-8.tmp"),
          slow("BAD_WORLD_SLOW", "0.02");
      Child child(w.train_arguments(name, kSaving));
      // Read on as far as it gets, and no further than into the write.
      while (!exists(w.path(name + "/checkpoint-8.tmp/optimizer.safetensors")) &&
             !exists(w.path(name + "/checkpoint-8.tmp/COMPLETE"))) {
        if (exists(w.path(name + "/checkpoint-8"))) break;
        bool writing = false;
        if (exists(w.path(name + "/checkpoint-8.tmp")))
          for (const auto& entry : fs::directory_iterator(w.path(name + "/checkpoint-8.tmp")))
            writing |= entry.path().filename().string().rfind("model.safetensors", 0) == 0;
        if (writing) break;
        if (child.next().empty()) break;
      }
      ASSERT_TRUE(exists(w.path(name + "/checkpoint-8.tmp"))) << "the test came too late";
      child.send(SIGTERM);
      if (signals == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        child.send(SIGTERM);
      }
      const Outcome o = child.finish();
      EXPECT_EQ(o.code, signals == 1 ? 75 : 130) << o.out << o.err;
      if (signals == 1) {
        expect_parts(o.out, {"Stopped at step ", "; saved "});
        EXPECT_TRUE(exists(w.path(name + "/checkpoint-8/COMPLETE")));
      } else {
        EXPECT_EQ(complete_checkpoints(w, name), (std::vector<int>{4}));
      }
    }
    expect_good_resume(w, name);
  }
}

// Kill -9 three times, each time inside the write of a checkpoint; tests/tools/kill_campaign.py
// does it by the dozen.
TEST(SlowSaving, KilledWhileItWrites) {
  NEEDS_PRELOAD();
  const Workspace w;
  const std::vector<std::string> keys = {"save_steps=2", "eval_steps=3", "save_total_limit=3"};
  w.trained("whole", keys);
  for (int kill = 0; kill < 3; ++kill) {
    const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", ".safetensors.tmp"),
        slow("BAD_WORLD_SLOW", "0.03");
    std::vector<std::string> words = keys;
    if (exists(w.path("parts"))) words.emplace_back("resume=latest");
    Child child(w.train_arguments("parts", words));
    const std::string torn = w.path("parts/checkpoint-" + std::to_string(2 + 4 * kill) + ".tmp");
    while (!exists(torn) && !child.next().empty()) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(15 * kill));
    child.send(SIGKILL);
    EXPECT_EQ(child.finish().code, 128 + SIGKILL);
    // The first kill may leave nothing to go on from.
    if (complete_checkpoints(w, "parts").empty()) fs::remove_all(w.path("parts"));
  }
  w.trained("parts", joined(keys, {"resume=latest"}));
  expect_same_run(w, "whole", "parts");
  EXPECT_EQ(complete_checkpoints(w, "parts"), complete_checkpoints(w, "whole"));
}

}  // namespace
}  // namespace snug::e2e
