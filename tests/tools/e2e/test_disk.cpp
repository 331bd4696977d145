// States on disk: the same run in less memory, whatever happens to the file and to the process; what
// is found there that was not written ends the run, and a checkpoint goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kDisk = {"per_device_train_batch_size=3", "head_rows=64",
                                        "save_steps=4", "lr_scheduler_type=constant",
                                        "offload_optimizer=disk"};
const std::vector<std::string> kMemory = {"per_device_train_batch_size=3", "head_rows=64",
                                          "save_steps=4", "lr_scheduler_type=constant"};

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin " << text;
}

TEST(Disk, TheSameRunWithStatesInAFile) {
  const Workspace w;
  for (const char* precision : {"precision=fp32", "precision=bf16"}) {
    SCOPED_TRACE(precision);
    const auto with = [&](const std::vector<std::string>& keys,
                          const std::vector<std::string>& more) {
      return joined(joined(keys, {precision, "overwrite=true"}), more);
    };
    w.trained("memory", with(kMemory, {"max_steps=8"}));
    const Outcome run =
        w.trained("disk", with(kDisk, {"max_steps=8", "trace=true", "disk_bandwidth=2GB"}));
    expect_planned_is_measured(w, "disk");
    const Json plan = w.json("disk/plan.json"), memory = w.json("disk/memory.json");
    const int64_t bytes = plan["disk_bytes"];
    EXPECT_GT(bytes, 0);
    EXPECT_EQ(memory["planned_disk_bytes"], bytes);
    EXPECT_EQ(memory["disk"]["measured_bytes"], bytes);
    // Every step reads and writes all of it.
    EXPECT_EQ(memory["disk"]["moved_bytes"], 2 * 8 * bytes);
    EXPECT_EQ(plan["disk"]["bytes_a_step"], 2 * bytes);
    EXPECT_EQ(plan["disk"]["bytes_per_second"], 2e9);
    EXPECT_EQ(plan["disk"]["rate"], "disk_bandwidth");
    EXPECT_EQ(plan["decisions"]["offload_optimizer"], "disk");
    EXPECT_EQ(plan["host_bytes"], 0);
    const std::string exactly = std::to_string(bytes) + " B";
    expect_parts(run.out, {", the optimizer's state on disk, ", "\n  disk ",
                           "\n  on disk: ", " at 2.00 GB/s (disk_bandwidth)",
                           "disk reserved: " + exactly + " in " + w.path("disk"),
                           "disk: " + exactly + " planned, " + exactly + " on it; "});
    expect_parts(slurp(w.path("disk/report.html")),
                 {">disk</th>", "<h2>Tiers</h2>", "<title>disk: ", "<th scope=\"row\">disk</th>"});
    expect_parts(slurp(w.path("disk/trace.json")), {"{\"name\":\"disk\"}"});
    expect_parts(slurp(w.path("disk/config.resolved.yaml")), {"\noffload_optimizer: disk"});
    for (const std::string& name : listing(w.path("disk")))
      EXPECT_EQ(name.find(".disk"), std::string::npos) << name;
    EXPECT_EQ(w.curve("disk"), w.curve("memory"));
    const auto same = [&](const std::string& name, const std::vector<const char*>& files) {
      for (const char* file : files)
        EXPECT_EQ(slurp(w.path(name + file)), slurp(w.path(std::string("memory") + file)))
            << name << file;
    };
    same("disk", {"/final/model.safetensors", "/checkpoint-4/optimizer.safetensors",
                  "/checkpoint-8/optimizer.safetensors"});
    w.trained("moved", with(kMemory, {"max_steps=4"}));
    w.trained("moved", joined(kDisk, {precision, "max_steps=8", "resume=latest"}));
    w.trained("back", with(kDisk, {"max_steps=4"}));
    w.trained("back", joined(kMemory, {precision, "max_steps=8", "resume=latest"}));
    same("moved", {"/checkpoint-8/optimizer.safetensors"});
    same("back", {"/checkpoint-8/optimizer.safetensors"});
    w.trained("followed", joined(kMemory, {precision, "max_steps=8", "overwrite=true",
                                           "plan=" + w.path("disk/plan.json")}));
    EXPECT_EQ(w.json("followed/plan.json")["hash"], plan["hash"]);
    EXPECT_EQ(w.curve("followed"), w.curve("memory"));
  }
  // Elsewhere, by the name that others have for it.
  fs::create_directory(w.path("scratch"));
  const Outcome there = w.trained("there", joined(kDisk, {"nvme_path=" + w.path("scratch")}));
  expect_parts(there.out, {" B in " + w.path("scratch")});
  EXPECT_TRUE(fs::is_empty(w.path("scratch")));
}

// A plan's rate is assumed until somebody says it or has it measured, of a disk of this machine.
TEST(Disk, ItsRateIsWhatCalibrateFound) {
  const Workspace w;
  fs::create_directory(w.path("there"));
  const std::vector<std::string> keys =
      joined(kDisk, {"nvme_path=" + w.path("there"), "output_dir=" + w.path("none")});
  const auto rate = [&](const std::vector<std::string>& more) {
    return w.plan(joined(keys, more))["disk"];
  };
  EXPECT_EQ(rate({})["rate"], "assumed");
  const Outcome o = run({"calibrate", "disk=" + w.path("there"), "--seconds", "0", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const Json c = Json::parse(o.out);
  EXPECT_EQ(c["measured_now"], true);
  EXPECT_TRUE(fs::is_empty(w.path("there")));
  const double read = c["read_bytes"], written = c["written_bytes"];
  EXPECT_GT(std::min(read, written), 0);
  EXPECT_EQ(c["file_bytes"].get<int64_t>() % (2 << 20), 0);
  const Json found = rate({});
  EXPECT_EQ(found["rate"], "calibrated");
  EXPECT_DOUBLE_EQ(found["bytes_per_second"], 2 * read * written / (read + written));
  // By the folder that will be made.
  EXPECT_EQ(w.plan(joined(kDisk, {"output_dir=" + w.path("there/new/run")}))["disk"]["rate"],
            "calibrated");
  EXPECT_EQ(rate({"disk_bandwidth=2GB"})["bytes_per_second"], 2e9);
  EXPECT_EQ(rate({"target=cpu-8", "memory=1GiB"})["rate"], "assumed");
  const Outcome again = run({"calibrate", "disk=" + w.path("there")});
  expect_parts(again.out,
               {"read, in turn with writing", " GB/s", "Measured before, in ", "--force"});
  Json stopped = c;
  stopped["written_bytes"] = 0;
  spill(c["path"].get<std::string>(), stopped.dump());
  EXPECT_EQ(rate({})["rate"], "assumed");
  expect_parts(run({"calibrate", "disk=" + w.path("there"), "--seconds", "0"}).err,
               {"expected a rate above 0 for written_bytes in ", "Measuring "});
  spill(c["path"].get<std::string>(), "{}");
  const Outcome damaged =
      w.trained("run", joined(kDisk, {"nvme_path=" + w.path("there"), "max_steps=1"}));
  expect_parts(damaged.err, {"cannot be used: ", "expected a disk calibration of version 1 in "});
  expect_parts(damaged.out, {"(assumed; "});
}

// A run that has nothing left to do has moved nothing, and says nothing of how fast.
TEST(Disk, NothingThatWasMovedHasNoRate) {
  const Workspace w;
  const std::vector<std::string> keys = joined(kDisk, {"save_steps=2", "max_steps=2"});
  w.trained("run", keys);
  const Outcome again = w.trained("run", joined(keys, {"resume=latest"}));
  expect_parts(again.out, {"Nothing is left to train", "disk reserved: "});
  EXPECT_EQ(again.out.find("read and written at"), std::string::npos) << again.out;
}

// A run that lost power goes on with its states elsewhere, to the bits of one that was left alone: from
// memory, the host and pages to the disk, and back.
struct Move {
  const char* name;
  std::vector<std::string> common, first, second;
};

void expect_moves(const std::vector<Move>& moves) {
  const Workspace w;
  for (const Move& m : moves) {
    SCOPED_TRACE(m.name);
    for (const char* run : {"whole", "parts"}) fs::remove_all(w.path(run));
    const std::vector<std::string> keys =
        joined(m.common, {"logging_steps=3", "save_steps=5", "eval_steps=4", "host_memory=256MiB"});
    w.trained("whole", joined(keys, m.first));
    lose_power_after(w, "whole", "parts", 5);
    w.trained("parts", joined(joined(keys, m.first), joined({"resume=latest"}, m.second)));
    expect_same_run(w, "whole", "parts");
    expect_planned_is_measured(w, "parts");
  }
}

const std::vector<std::string> kHere = {"offload_optimizer=none"},
                               kHost = {"offload_optimizer=cpu"},
                               kFile = {"offload_optimizer=disk"};

TEST(Disk, ResumesMoveStates) {
  expect_moves({{"to memory", {"precision=bf16"}, kFile, kHere},
                {"to disk, paged",
                 {},
                 {"optim=paged_adamw_8bit", "offload_optimizer=cpu"},
                 {"optim=adamw_8bit", "offload_optimizer=disk"}}});
}

TEST(SlowDisk, ResumesMoveStatesOfEveryForm) {
  expect_moves(
      {{"lion", {"optim=lion", "precision=bf16"}, kHere, kFile},
       {"to the host", {"optim=adamw"}, kFile, kHost},
       {"no master", {"optim=adamw_bf16", "precision=bf16", "allow=[no_master]"}, kHost, kFile},
       {"4 bits, paged",
        {},
        {"optim=paged_ademamix_4bit", "offload_optimizer=disk"},
        {"optim=ademamix_4bit", "offload_optimizer=none"}},
       {"8 bits", {"optim=lamb_8bit"}, kFile, kHere},
       {"matrices", {"optim=muon", "precision=bf16"}, kFile, kHere},
       {"factored", {"optim=adafactor"}, kHere, kFile},
       {"averages", {"optim=schedule_free_adamw", "lr_scheduler_type=constant"}, kFile, kHere}});
}

// The file of a run, as its process has it open.
int open_states(pid_t pid) {
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code none;
    if (fs::read_symlink(entry, none).string().find(".disk (deleted)") != std::string::npos)
      return open(entry.path().c_str(), O_RDWR);
  }
  return -1;
}

// A run cannot get more than a line ahead of its reader: behind each line the file is harmed again.
TEST(Disk, WhatWasNotWrittenThereIsFound) {
  const Workspace w;
  w.trained("whole", kDisk);
  const struct {
    const char* name;
    void (*harm)(int fd, int time);
    std::vector<std::string> found;
  } harms[] = {{"a byte of every block",
                [](int fd, int time) {
                  const off_t end = lseek(fd, 0, SEEK_END);
                  for (off_t at = 777; at < end; at += 64 << 10) {
                    unsigned char byte = 0;
                    ASSERT_EQ(pread(fd, &byte, 1, at), 1);
                    byte = static_cast<unsigned char>(byte ^ (time + 1));
                    ASSERT_EQ(pwrite(fd, &byte, 1, at), 1);
                  }
                },
                {"device: expected the optimizer's state at byte ", " as it was written: checksum ",
                 ": the disk gives back other bytes, or another program wrote there"}},
               {"a shorter file",
                [](int fd, int) { ASSERT_EQ(ftruncate(fd, 0), 0); },
                {"device: expected to read the optimizer's state at byte ",
                 "\n  found: the end of the file: it was made shorter"}}};
  for (const auto& h : harms) {
    SCOPED_TRACE(h.name);
    fs::remove_all(w.path("run"));
    Child child(w.train_arguments("run", joined(kDisk, {"logging_steps=1"})));
    ASSERT_TRUE(child.read_until("step      6/12"));
    const int fd = open_states(child.pid());
    ASSERT_GE(fd, 0);
    for (int time = 0; time < 6; ++time) {
      h.harm(fd, time);
      if (child.next().empty()) break;
    }
    close(fd);
    const Outcome o = child.finish();
    EXPECT_EQ(o.code, 1) << o.out;
    expect_parts(o.err, h.found);
    expect_parts(o.err, {w.path("run/states-"),
                         "\n  try:   resume=latest, which takes the states of a "
                         "checkpoint; with another disk: offload_disk=FOLDER"});
    w.trained("run", joined(kDisk, {"resume=latest"}));
    expect_same_run(w, "whole", "run");
  }
}

TEST(Disk, ADiskThatIsFullEndsTheRunAndACheckpointGoesOn) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("whole", kDisk);
  const int64_t bytes = w.json("whole/plan.json")["disk_bytes"];
  for (const int64_t room : {bytes - 1, 5 * bytes + 100}) {
    fs::remove_all(w.path("full"));
    {
      const Environment load("LD_PRELOAD", kBadWorld), files("BAD_WORLD_FILES", ".disk"),
          left("BAD_WORLD_ROOM", std::to_string(room));
      const Outcome o = w.train("full", kDisk);
      EXPECT_EQ(o.code, 1) << o.out;
      expect_parts(o.err, {"device: expected to write the optimizer's state at byte ",
                           "\n  found: No space left on device", "\n  try:   resume=latest"});
    }
    if (room < bytes) {
      EXPECT_TRUE(complete_checkpoints(w, "full").empty());
      w.trained("full", joined(kDisk, {"overwrite=true"}));
    } else {
      EXPECT_EQ(complete_checkpoints(w, "full"), (std::vector<int>{4}));
      w.trained("full", joined(kDisk, {"resume=latest"}));
    }
    expect_same_run(w, "whole", "full");
  }
}

// Nothing is left of a process that is gone, and a checkpoint has its states.
TEST(Disk, AKilledRunLeavesNothingAndGoesOn) {
  const Workspace w;
  const std::vector<std::string> keys = joined(kDisk, {"logging_steps=1", "save_steps=2"});
  w.trained("whole", keys);
  fs::remove_all(w.path("parts"));
  for (const char* line : {"step      3/12", "step      6/12", "step     11/12"}) {
    std::vector<std::string> words = keys;
    const bool begun = exists(w.path("parts"));
    if (begun && !complete_checkpoints(w, "parts").empty())
      words.emplace_back("resume=latest");
    else if (begun)
      words.emplace_back("overwrite=true");
    Child child(w.train_arguments("parts", words));
    ASSERT_TRUE(child.read_until(line));
    child.send(SIGKILL);
    EXPECT_EQ(child.finish().code, 128 + SIGKILL);
    for (const std::string& name : listing(w.path("parts")))
      EXPECT_EQ(name.find(".disk"), std::string::npos) << name;
  }
  w.trained("parts", joined(keys, {complete_checkpoints(w, "parts").empty() ? "overwrite=true"
                                                                            : "resume=latest"}));
  expect_same_run(w, "whole", "parts");
}

}  // namespace
}  // namespace snug::e2e
