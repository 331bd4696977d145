#include "engine/device/cgroup.h"

#include <algorithm>
#include <fstream>

#include "engine/device/mounts.h"

namespace snug {
namespace {

bool lists(std::string_view options, std::string_view wanted) {
  while (!options.empty()) {
    const size_t end = std::min(options.find(','), options.size());
    if (options.substr(0, end) == wanted) return true;
    options.remove_prefix(std::min(end + 1, options.size()));
  }
  return false;
}

// A hierarchy that is mounted: where, and which of its groups is there at the top.
struct Mount {
  bool v2 = false;
  std::string group, folder;
};

std::vector<Mount> mounts_of(const std::string& root, std::string_view controller) {
  std::vector<Mount> mounts;
  for (const MountedFolder& m : mounted_folders(root)) {
    const bool v2 = m.type == "cgroup2";
    if (v2 || (m.type == "cgroup" && lists(m.options, controller)))
      mounts.push_back({v2, m.top, root + m.folder});
  }
  if (mounts.empty())
    mounts = {{true, "/", root + "/sys/fs/cgroup"},
              {false, "/", root + "/sys/fs/cgroup/" + std::string(controller)}};
  return mounts;
}

// The group's path below the mount's top; empty where the mount does not show it or it is the top.
std::string below(const std::string& group, const std::string& top) {
  if ((group + "/").find("/../") != std::string::npos) return "";  // outside the namespace
  if (top == "/") return group == "/" ? "" : group;
  if (group.compare(0, top.size(), top) != 0) return "";
  return group.size() > top.size() && group[top.size()] == '/' ? group.substr(top.size()) : "";
}

}  // namespace

std::vector<CgroupFolder> cgroup_folders(const std::string& root, std::string_view controller) {
  std::string group_v1, group_v2;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // ID:controllers:/path
    const size_t one = line.find(':'), two = line.find(':', one + 1);
    if (one == std::string::npos || two == std::string::npos) continue;
    const std::string controllers = line.substr(one + 1, two - one - 1);
    if (controllers.empty()) group_v2 = line.substr(two + 1);
    if (lists(controllers, controller)) group_v1 = line.substr(two + 1);
  }
  std::vector<CgroupFolder> folders;
  for (const Mount& mount : mounts_of(root, controller)) {
    std::string path = below(mount.v2 ? group_v2 : group_v1, mount.group);
    for (;;) {
      folders.push_back({mount.v2, mount.folder + path});
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return folders;
}

}  // namespace snug
