// A new folder for files that a command needs for a moment, removed with its content.
#pragma once

#include <string>

namespace snug {

class ScratchFolder {
 public:
  // In TMPDIR or /tmp, named after the command. Throws usage if none can be made.
  explicit ScratchFolder(const std::string& command);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace snug
