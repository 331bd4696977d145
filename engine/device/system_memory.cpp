#include "engine/device/system_memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>

#include "engine/device/cgroup.h"

namespace snug {
namespace {

int64_t read_number(const std::string& path) {
  std::ifstream in(path);
  int64_t v = -1;
  if (in >> v) return v;
  return -1;  // absent, or the word "max"
}

// The number after `key` in a file of "key number" lines; 0 if absent.
int64_t keyed(const std::string& path, const std::string& key) {
  std::ifstream in(path);
  std::string name, rest;
  int64_t value = 0;
  while (in >> name >> value && std::getline(in, rest))
    if (name == key) return value;
  return 0;
}

}  // namespace

MemoryInfo system_memory(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  const int64_t machine = keyed(meminfo, "MemTotal:") * 1024;
  MemoryInfo info{machine, keyed(meminfo, "MemAvailable:") * 1024};
  for (const CgroupFolder& group : cgroup_folders(root, "memory")) {
    const std::string folder = group.path + "/";
    int64_t limit = read_number(folder + (group.v2 ? "memory.max" : "memory.limit_in_bytes"));
    // Above it nothing is killed, but what cannot be given up crawls: anonymous memory, as ours.
    const int64_t high = group.v2 ? read_number(folder + "memory.high") : 0;
    if (high > 0 && (limit <= 0 || high < limit)) limit = high;
    const int64_t used =
        read_number(folder + (group.v2 ? "memory.current" : "memory.usage_in_bytes"));
    if (limit <= 0 || limit >= machine || used < 0) continue;
    const std::string stat = folder + "memory.stat", prefix = group.v2 ? "" : "total_";
    const int64_t cache = keyed(stat, prefix + "active_file") +
                          keyed(stat, prefix + "inactive_file") +
                          (group.v2 ? keyed(stat, "slab_reclaimable") : 0);
    info.total_bytes = std::min(info.total_bytes, limit);
    info.available_bytes =
        std::min(info.available_bytes, std::clamp<int64_t>(limit - used + cache, 0, limit));
  }
  return info;
}

}  // namespace snug
