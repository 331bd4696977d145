#include "engine/device/cgroup.h"

#include <algorithm>
#include <fstream>
#include <sstream>

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

// A path of mountinfo, in which a blank is written \040, and so on: a backslash and three octal
// digits.
std::string unescaped(const std::string& text) {
  std::string path;
  const auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '7'; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && digit(i + 1) && digit(i + 2) && digit(i + 3)) {
      path += static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8));
      i += 3;
    } else {
      path += text[i];
    }
  }
  return path;
}

// mountinfo(5): ID parent major:minor ROOT MOUNTPOINT options [tags] - TYPE source SUPEROPTIONS
std::vector<Mount> mounts_of(const std::string& root, std::string_view controller) {
  std::vector<Mount> mounts;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string skip, group, folder, type, source, options;
    if (!(left >> skip >> skip >> skip >> group >> folder)) continue;
    if (!(right >> type >> source >> options)) continue;
    const bool v2 = type == "cgroup2";
    if (v2 || (type == "cgroup" && lists(options, controller)))
      mounts.push_back({v2, unescaped(group), root + unescaped(folder)});
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
