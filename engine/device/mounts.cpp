#include "engine/device/mounts.h"

#include <sys/statvfs.h>

#include <fstream>
#include <sstream>
#include <utility>

namespace snug {

namespace {

// A blank is written \040, and so on: a backslash and three octal digits.
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

}  // namespace

std::vector<MountedFolder> mounted_folders(const std::string& root) {
  std::vector<MountedFolder> mounts;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string skip;
    MountedFolder m;
    if (!(left >> skip >> skip >> m.device >> m.top >> m.folder)) continue;
    if (!(right >> m.type >> m.source >> m.options)) continue;
    for (std::string* path : {&m.top, &m.folder, &m.source}) *path = unescaped(*path);
    mounts.push_back(std::move(m));
  }
  return mounts;
}

std::optional<int64_t> free_disk_bytes(const std::string& folder) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return std::nullopt;
  return static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
}

}  // namespace snug
