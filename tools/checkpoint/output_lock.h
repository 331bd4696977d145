// The lock that a run holds on its output_dir from before it touches anything there until it ends.
//
// flock(2) on the file .lock in the folder: the kernel lets go of it however the process ends, so
// no lock outlives its run. The file holds the process's id for whoever is refused. It goes with an
// orderly end; one that a killed run left behind is free and is taken again.
#pragma once

#include <string>

namespace snug {

// Its name in the folder.
inline constexpr const char* kLockName = ".lock";

class OutputLock {
 public:
  OutputLock() = default;
  ~OutputLock() { release(); }
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

  // Locks `dir`, unless it is locked by this already, is no folder, or cannot be written to at all
  // (whoever writes first says so). Throws usage if another process holds it. Where the file system
  // has no locks a warning is printed, and the run goes on without.
  void take(const std::string& dir);
  bool held() const noexcept { return fd_ >= 0; }
  // Another folder, or a file, stands where the locked one stood: that one was moved or removed
  // meanwhile.
  bool lost() const noexcept;
  // Removes the file and lets go.
  void release() noexcept;

 private:
  int fd_ = -1, folder_ = -1;  // of the file; of the folder, to know it again
  bool warned_ = false;
  std::string dir_, path_;
};

}  // namespace snug
