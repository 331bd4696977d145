#include "tests/tools/e2e/runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/io/fingerprint.h"
#include "engine/io/safetensors.h"

namespace snug::e2e {

namespace fs = std::filesystem;

namespace {

// The state a run goes on from, but for the time it took.
Json state_of(const Workspace& w, const std::string& name) {
  Json state = w.json(name + "/snug_state.json");
  state.erase("elapsed_seconds");
  state["pinned"].erase("recompute");
  state["hyperparameters"] = nullptr;
  return state;
}

// What metrics.csv says of steps, losses and rates.
std::string csv_curve(const Workspace& w, const std::string& name) {
  std::istringstream in(slurp(w.path(name + "/metrics.csv")));
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    int column = 0;
    for (const char c : line) {
      column += c == ',';
      if (column < 5 || column == 10 || column == 11) kept += c;
    }
    kept += "\n";
  }
  return kept;
}

}  // namespace

std::vector<pid_t> processes_of(pid_t pid) {
  std::vector<pid_t> list;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "stat");
    std::string text;
    std::getline(in, text);
    const size_t behind = text.rfind(')');  // of the name, which may hold anything
    if (behind == std::string::npos) continue;
    std::istringstream rest(text.substr(behind + 1));
    char state = 0;
    pid_t parent = 0;
    if (rest >> state >> parent && parent == pid) list.push_back(std::stoi(name));
  }
  std::sort(list.begin(), list.end());
  return list;
}

bool ends_soon(pid_t pid) {
  for (int tries = 0; tries < 2000; ++tries) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");  // none: it is gone
    std::string text;
    std::getline(in, text);
    const size_t behind = text.rfind(") ");
    if (behind == std::string::npos || text[behind + 2] == 'Z' || text[behind + 2] == 'X')
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

void expect_exact(const Workspace& w, const std::string& folder) {
  const Json memory = w.json(folder + "/memory.json");
  EXPECT_EQ(memory["planned_engine_bytes"], memory["measured_engine_bytes"]) << folder;
  if (!memory["allocations_after_start"].is_null()) {
    EXPECT_EQ(memory["allocations_after_start"], 0) << folder;
  }
  EXPECT_TRUE(memory["finished"]) << folder;
}

void expect_exact_with_host(const Workspace& w, const std::string& folder) {
  expect_exact(w, folder);
  const Json memory = w.json(folder + "/memory.json");
  EXPECT_GT(memory["planned_host_bytes"], 0) << folder;
  EXPECT_EQ(memory["planned_host_bytes"], memory["measured_host_bytes"]) << folder;
}

void expect_same_bytes(const Workspace& w, const std::string& a, const std::string& b,
                       const std::string& file) {
  EXPECT_TRUE(slurp(w.path(a + "/" + file)) == slurp(w.path(b + "/" + file)))
      << file << " of " << a << " and " << b;
}

void expect_same_tensors(const Workspace& w, const std::string& a, const std::string& b,
                         const std::string& file) {
  const SafetensorsReader x(w.path(a + "/" + file)), y(w.path(b + "/" + file));
  ASSERT_EQ(x.tensors().size(), y.tensors().size());
  for (const SafeTensor& t : x.tensors()) {
    const SafeTensor& other = y.at(t.name);
    EXPECT_EQ(t.shape, other.shape) << t.name;
    ASSERT_EQ(t.bytes, other.bytes) << t.name;
    EXPECT_EQ(std::memcmp(t.data, other.data, static_cast<size_t>(t.bytes)), 0) << t.name;
  }
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void lose_power_after(const Workspace& w, const std::string& from, const std::string& to,
                      int step) {
  fs::copy(w.path(from), w.path(to), fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(w.path(to))) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("checkpoint-", 0) == 0 && std::stoi(name.substr(11)) > step)
      fs::remove_all(entry.path());
  }
  for (const char* name : {"final", "memory.json"}) fs::remove_all(w.path(to + "/" + name));
}

void expect_same_run(const Workspace& w, const std::string& a, const std::string& b, int steps) {
  const std::string last = "/checkpoint-" + std::to_string(steps);
  EXPECT_EQ(w.curve(a), w.curve(b));
  EXPECT_EQ(csv_curve(w, a), csv_curve(w, b));
  EXPECT_EQ(state_of(w, a + last), state_of(w, b + last));
  EXPECT_EQ(w.json(a + "/trainer_state.json")["log_history"].size(),
            w.json(b + "/trainer_state.json")["log_history"].size());
  EXPECT_TRUE(slurp(w.path(a + "/final/model.safetensors")) ==
              slurp(w.path(b + "/final/model.safetensors")))
      << "the weights of " << a << " and " << b;
  EXPECT_TRUE(slurp(w.path(a + last + "/optimizer.safetensors")) ==
              slurp(w.path(b + last + "/optimizer.safetensors")))
      << "the optimizer of " << a << " and " << b;
}

void reseal(const std::string& checkpoint) {
  std::istringstream in(slurp(checkpoint + "/COMPLETE"));
  std::string text;
  for (std::string line; std::getline(in, line);) {
    const size_t name = line.rfind(' ') + 1;
    if (line.rfind("snug ", 0) == 0 || line.rfind("step ", 0) == 0) {
      text += line + "\n";
    } else if (line.substr(name) != "seal") {
      const std::string bytes = slurp(checkpoint + "/" + line.substr(name));
      text += fingerprint_text(fingerprint(bytes)) + " " + std::to_string(bytes.size()) + " " +
              line.substr(name) + "\n";
    }
  }
  spill(checkpoint + "/COMPLETE", text + fingerprint_text(fingerprint(text)) + " seal\n");
}

void flip_bit(const std::string& path, int64_t offset) {
  std::string bytes = slurp(path);
  ASSERT_FALSE(bytes.empty()) << path;
  char& byte =
      bytes[static_cast<size_t>(offset < 0 ? static_cast<int64_t>(bytes.size()) + offset : offset)];
  byte = static_cast<char>(byte ^ 1);
  spill(path, bytes);
}

std::vector<int> complete_checkpoints(const Workspace& w, const std::string& name) {
  std::vector<int> steps;
  for (const auto& entry : fs::directory_iterator(w.path(name))) {
    const std::string folder = entry.path().filename().string();
    if (folder.rfind("checkpoint-", 0) == 0 && folder.find('.') == std::string::npos &&
        fs::exists(entry.path() / "COMPLETE"))
      steps.push_back(std::stoi(folder.substr(11)));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

Environment::Environment(std::string name, const std::string& value) : name_(std::move(name)) {
  setenv(name_.c_str(), value.c_str(), 1);
}

Environment::~Environment() {
  unsetenv(name_.c_str());
}

FileSizeLimit::FileSizeLimit(int64_t bytes) {
  getrlimit(RLIMIT_FSIZE, &before_);
  rlimit limit = before_;
  limit.rlim_cur = static_cast<rlim_t>(bytes);
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

FileSizeLimit::~FileSizeLimit() {
  setrlimit(RLIMIT_FSIZE, &before_);
}

}  // namespace snug::e2e
