// What this machine and this process's place on it have to do with training, line by line.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace snug {

enum class Level { ok, note, problem };  // problem: training cannot start, or would fail

struct Finding {
  std::string name;  // "memory"
  Level level = Level::ok;
  std::string text = {};    // what there is
  std::string advice = {};  // what to do; empty if there is nothing
  nlohmann::ordered_json facts = {};
};

struct MachineOptions {
  std::string root = {};     // for tests: stands before the paths of /proc and /sys
  std::string folder = ".";  // whose disk is looked at
};

// Never throws: what cannot be found out is said.
std::vector<Finding> examine_machine(const MachineOptions& options = {});

std::string machine_text(const std::vector<Finding>& findings);
nlohmann::ordered_json machine_json(const std::vector<Finding>& findings);

// One line each, for tests with made-up files below `root`.
Finding examine_huge_pages(const std::string& root);
Finding examine_swap(const std::string& root);
Finding examine_overcommit(const std::string& root);
Finding examine_processors(const std::string& root);
Finding examine_memory(int64_t total, int64_t available, int64_t limit);
// As if `free_bytes` were free; nullopt: what is.
Finding examine_disk(const std::string& folder, std::optional<int64_t> free_bytes = {});
Finding examine_limits(int64_t address_space, int64_t file_size, int64_t files);  // -1: unlimited
Finding examine_locale(const std::string& name, bool terminal);
Finding examine_cuda();

}  // namespace snug
