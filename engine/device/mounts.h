#pragma once
// File systems of this machine: what is mounted where, and the bytes that a folder's has free.
// Source    mountinfo(5): ID parent major:minor ROOT MOUNTPOINT options [tags] - TYPE source
//           SUPEROPTIONS; statvfs(3).
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug {

struct MountedFolder {
  std::string device;  // "major:minor"
  std::string top;     // the folder of the file system that is shown
  std::string folder;  // where
  std::string type, source, options;
};

// Lines of ROOT/proc/self/mountinfo, in their order; none where it is not there.
std::vector<MountedFolder> mounted_folders(const std::string& root = "");

// Bytes that a process without rights may still write there; nothing where the system does not say.
std::optional<int64_t> free_disk_bytes(const std::string& folder);

}  // namespace snug
