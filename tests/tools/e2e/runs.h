// Runs that stop and go on: what the tests of resuming and of failures share.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/folders.h"
#include "tests/tools/e2e/workspace.h"

namespace snug::e2e {

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b);

// `from` as it was when its checkpoint of `step` was new, as a machine that lost power leaves it:
// what was logged since is there.
void lose_power_after(const Workspace& w, const std::string& from, const std::string& to, int step);

// Lines, states, final weights and optimizer of two runs of `steps` steps: equal but for times.
void expect_same_run(const Workspace& w, const std::string& a, const std::string& b,
                     int steps = 12);

// The same tensors, whole in one file or in pieces of ranks.
void expect_same_tensors(const Workspace& w, const std::string& a, const std::string& b,
                         const std::string& file);

// The processes that a process has started, in their order. /proc/PID/task/PID/children is not in every
// kernel.
std::vector<pid_t> processes_of(pid_t pid);

// True once a process has ended, though nobody may have waited for it yet: one that was killed takes the
// time to give its memory back. False after 20 s.
bool ends_soon(pid_t pid);

// What was planned is what the system found, of the rank whose folder it is.
void expect_exact(const Workspace& w, const std::string& folder);
// The same, and of its host's memory too, of which it has some.
void expect_exact_with_host(const Workspace& w, const std::string& folder);

// A file of two runs.
void expect_same_bytes(const Workspace& w, const std::string& a, const std::string& b,
                       const std::string& file);

// COMPLETE of a checkpoint whose files were edited by one who knows how it is made.
void reseal(const std::string& checkpoint);

// Flips a bit of the byte at `offset`; from the end if negative.
void flip_bit(const std::string& path, int64_t offset);

// Steps of the checkpoints with a COMPLETE, ascending.
std::vector<int> complete_checkpoints(const Workspace& w, const std::string& name);

// A variable of the environment of children started while it lives.
class Environment {
 public:
  Environment(std::string name, const std::string& value);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::string name_;
};

// What LD_PRELOAD names for tests/support/bad_world.cpp, which not every build can load.
inline const std::string kBadWorld = binary_folder() + "/lib/libsnug_bad_world.so";
#define NEEDS_PRELOAD()                                                                   \
  if (program_has_sanitizer()) GTEST_SKIP() << "a sanitizer replaces what this replaces"; \
  if (!exists(kBadWorld)) GTEST_SKIP() << kBadWorld << " was not built"

// Bytes of the largest file that children started while it lives may write.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(int64_t bytes);
  ~FileSizeLimit();
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace snug::e2e
