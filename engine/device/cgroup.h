// The control groups this process is in: the folders whose files say what it is granted.
//
// Sources   /proc/self/cgroup and /proc/self/mountinfo, which say where the group's files are
//           (kernel documentation: cgroup-v2.rst, cgroup-v1; mountinfo(5)).
// Errors    none: what is missing or makes no sense gives no folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

struct CgroupFolder {
  bool v2 = false;
  std::string path;  // `root` included
};

// The folders of the group that `controller` ("cpu", "memory") keeps this process in and of every
// group above it that can be seen, the nearest first, hierarchy by hierarchy: a limit of any of
// them binds. A mount that does not show the group gives its top: some managers move a container's
// processes after they mounted its group. Where nothing is said of mounts, the usual places. For
// tests, `root` stands before every path that is read.
std::vector<CgroupFolder> cgroup_folders(const std::string& root, std::string_view controller);

}  // namespace snug
