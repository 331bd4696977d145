// What a loss of power could take: the calls of the program that write, make durable, rename and
// remove (BAD_WORLD_CALLS), replayed by the rules of POSIX. What is written is lost unless the file
// was synced after it, a name unless its folder was.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "tests/tools/e2e/runs.h"

namespace snug::e2e {
namespace {

namespace fs = std::filesystem;

struct Call {
  std::string what, path, to;
};

// The calls on what lies below `folder`, which has no space in its path, or is it.
std::vector<Call> calls_below(const std::string& file, const std::string& folder) {
  std::vector<Call> calls;
  std::istringstream in(slurp(file));
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    Call call;
    words >> call.what >> call.path >> call.to;
    if (call.path == folder || call.path.starts_with(folder + "/")) calls.push_back(call);
  }
  return calls;
}

bool below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder + "/");
}

class Disk {
 public:
  void play(const Call& call) {
    if (call.what == "write") unsynced_.insert(call.path);
    if (call.what == "sync") {
      unsynced_.erase(call.path);
      names_.erase(call.path);
    }
    if (call.what == "rename") rename(call.path, call.to);
    if (call.what == "remove") {
      // What is removed must not be all there is if the names of its successor are lost.
      for (const auto& [folder, names] : names_)
        EXPECT_FALSE(below(call.path, folder) && !names.contains(call.path))
            << call.path << " is removed before " << *names.begin() << " is durable";
      unsynced_.erase(call.path);
    }
  }
  void expect_all_durable() const {
    for (const std::string& file : unsynced_) ADD_FAILURE() << file << " is never synced";
    for (const auto& [folder, names] : names_)
      ADD_FAILURE() << folder << " is never synced after " << *names.begin() << " came to it";
  }

 private:
  void rename(const std::string& from, const std::string& to) {
    EXPECT_FALSE(unsynced_.contains(from)) << from << " is renamed before it is synced";
    const std::string folder = fs::path(to).parent_path();
    // A folder under its last name, or one with its marker, is taken for whole.
    const std::string whole = to.ends_with("/COMPLETE") ? folder : from;
    for (const std::string& file : unsynced_)
      EXPECT_FALSE(below(file, whole)) << to << " comes before " << file << " is synced";
    if (const auto it = names_.find(whole); it != names_.end())
      ADD_FAILURE() << to << " comes before " << whole << " is synced after " << *it->second.begin()
                    << " came to it";
    names_[folder].insert(to);
  }

  std::set<std::string> unsynced_;                      // files
  std::map<std::string, std::set<std::string>> names_;  // by folder, those not synced
};

// Of each rename to a name that ends so, how many there were.
int renames_to(const std::vector<Call>& calls, const std::string& end) {
  int n = 0;
  for (const Call& call : calls) n += call.what == "rename" && call.to.ends_with(end);
  return n;
}

// Of what `run` runs, the calls below `folder`, played.
std::vector<Call> expect_durable(const Workspace& w, const std::string& folder,
                                 const std::function<void()>& run) {
  const std::string log = w.path("calls");
  fs::remove(log);
  {
    const Environment load("LD_PRELOAD", kBadWorld), calls("BAD_WORLD_CALLS", log);
    run();
  }
  const std::vector<Call> calls = calls_below(log, folder);
  Disk disk;
  for (const Call& call : calls) disk.play(call);
  disk.expect_all_durable();
  return calls;
}
std::vector<Call> expect_durable(const Workspace& w, const std::string& name,
                                 const std::vector<std::string>& keys) {
  return expect_durable(w, w.path(name), [&] { w.trained(name, keys); });
}

TEST(Durable, WhatIsSaidToBeSavedOutlivesALossOfPower) {
  NEEDS_PRELOAD();
  const Workspace w;
  for (const std::string buffer : {"save_buffer=auto", "save_buffer=0"}) {
    SCOPED_TRACE(buffer);
    const std::string name = buffer.substr(buffer.find('=') + 1);
    const std::vector<Call> calls =
        expect_durable(w, name, {"save_steps=4", "save_total_limit=1", buffer});
    EXPECT_EQ(renames_to(calls, "/COMPLETE"), 3);
    for (const char* end : {"/checkpoint-4", "/checkpoint-8", "/checkpoint-12", "/final"})
      EXPECT_EQ(renames_to(calls, end), 1) << end;
    bool lines = false;
    for (size_t i = 0; i < calls.size(); ++i) {
      const Call& call = calls[i];
      // Whatever comes after it.
      if (call.what == "rename" && call.to.ends_with("/final")) {
        ASSERT_LT(i + 1, calls.size());
        EXPECT_EQ(calls[i + 1].what + " " + calls[i + 1].path, "sync " + w.path(name));
      }
      // The curve up to a checkpoint is durable before it.
      lines |= call.what == "sync" && call.path == w.path(name + "/metrics.jsonl");
      if (call.what != "rename" || !call.to.ends_with("/COMPLETE")) continue;
      EXPECT_TRUE(lines) << call.to << " comes before the lines of its steps are synced";
      lines = false;
    }
  }
  // A checkpoint and a final/ in the place of others.
  lose_power_after(w, "auto", "again", 12);
  fs::copy(w.path("auto/final"), w.path("again/final"));
  const std::vector<Call> calls =
      expect_durable(w, "again", {"save_steps=4", "resume=latest", "max_steps=16"});
  EXPECT_EQ(renames_to(calls, "/final"), 1);
  EXPECT_EQ(renames_to(calls, "/checkpoint-16"), 1);
}

// A run that goes on in another folder has the log of its checkpoint before the checkpoint.
TEST(Durable, SoDoesTheLogOfARunThatGoesOnElsewhere) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("run", {"save_steps=2", "max_steps=4"});
  const std::vector<Call> calls = expect_durable(
      w, "fork",
      {"resume=" + w.path("run/checkpoint-2"), "max_steps=4", "report_to=[csv,tensorboard]"});
  ASSERT_EQ(renames_to(calls, "/checkpoint-2"), 1);
  std::set<std::string> synced;
  for (const Call& call : calls) {
    if (call.what == "sync" && call.path.find(".tmp/") == std::string::npos)
      synced.insert(call.path.find("/runs/") == std::string::npos
                        ? fs::path(call.path).filename().string()
                        : "events");
    if (call.what == "rename" && call.to.ends_with("/checkpoint-2")) break;
  }
  for (const char* name : {"metrics.jsonl", "metrics.csv", "events"})
    EXPECT_TRUE(synced.contains(name)) << name;
}

TEST(Durable, SoDoesAConvertedFolder) {
  NEEDS_PRELOAD();
  const Workspace w;
  w.trained("run", {"max_steps=1"});
  const std::string root = fs::path(w.path("hf")).parent_path();
  for (const char* name : {"hf", "empty"}) {
    if (name == std::string("empty")) fs::create_directory(w.path(name));
    const std::vector<Call> calls = expect_durable(w, root, [&] {
      const Outcome o = run({"convert", "--model", w.path("run/final"), "--to", "hf", "--dtype",
                             "bf16", "--output", w.path(name)});
      EXPECT_EQ(o.code, 0) << o.err;
    });
    EXPECT_GE(renames_to(calls, "/config.json"), 1) << name;
    EXPECT_GE(renames_to(calls, std::string("/") + name), name == std::string("hf") ? 1 : 0);
  }
}

}  // namespace
}  // namespace snug::e2e
