#include "tools/checkpoint/output_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "tools/session/tell.h"

namespace snug {
namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

// Whether `path` is what is open as `fd`, and not another one of that name.
bool names(const std::string& path, int fd) {
  struct stat here {
  }, open{};
  return lstat(path.c_str(), &here) == 0 && fstat(fd, &open) == 0 && here.st_dev == open.st_dev &&
         here.st_ino == open.st_ino;
}

std::string holder(int fd) {
  char text[24] = {};
  long long pid = 0;
  if (pread(fd, text, sizeof text - 1, 0) > 0 && std::sscanf(text, "%lld", &pid) == 1 && pid > 0)
    return fmt::format("process {}", pid);
  return "another process";
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  fail(ErrorCode::usage, fmt::format("a file {} that can be opened and locked", path), why,
       "remove it if nothing writes to the folder, or another output_dir");
}

int open_lock(const std::string& path, bool& made) {
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | kFlags, 0666);
  made = fd >= 0;
  if (fd < 0 && errno == EEXIST) fd = open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0666);
  if (fd >= 0 || errno != EACCES) return fd;
  // Another user's, which can be asked all the same.
  const int other = open(path.c_str(), O_RDONLY | kFlags);
  if (other < 0 && errno == ENOENT) errno = EACCES;  // it is the folder that is closed
  return other;
}

}  // namespace

void OutputLock::take(const std::string& dir) {
  const std::string path = dir + "/" + kLockName;
  if (fd_ >= 0) {
    if (names(path, fd_)) return;
    release();  // the folder is another one by now
  }
  // Again if whoever held it removed the file between opening and locking it.
  for (;;) {
    bool made = false;
    const int fd = open_lock(path, made);
    if (fd < 0) {
      const int error = errno;
      struct stat file {};
      const bool there = lstat(path.c_str(), &file) == 0;
      if (!there && (error == ENOENT || error == ENOTDIR || error == EACCES || error == EROFS ||
                     error == EPERM))
        return;
      refuse(path, reason(error));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error == EWOULDBLOCK) {
        const std::string who = holder(fd);
        close(fd);
        fail(ErrorCode::usage, "an output_dir that no other run writes to",
             fmt::format("{}, which {} holds ({})", dir, who, path),
             "another output_dir, or wait until that run has ended");
      }
      if (error == EINTR) {
        close(fd);
        continue;
      }
      close(fd);
      if (made) unlink(path.c_str());  // it would say nothing; another one's stays
      if (!warned_)
        tell(stdout,
             "Warning: {} cannot be locked ({}): see to it that no other run writes there.\n", dir,
             reason(error));
      warned_ = true;
      return;
    }
    if (!names(path, fd)) {
      close(fd);
      continue;
    }
    const std::string pid = fmt::format("{}\n", getpid());
    // Only for the message to others: a full disk is no reason to stop here.
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) errno = 0;
    fd_ = fd;
    folder_ = open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    dir_ = normal_path(dir);  // "b/" would not name a file that took its place
    path_ = path;
    return;
  }
}

bool OutputLock::lost() const noexcept {
  struct stat now {
  }, then{};
  // Followed, as whoever writes there does.
  return fd_ >= 0 && folder_ >= 0 && !names(path_, fd_) && stat(dir_.c_str(), &now) == 0 &&
         fstat(folder_, &then) == 0 && (now.st_dev != then.st_dev || now.st_ino != then.st_ino);
}

void OutputLock::release() noexcept {
  if (fd_ < 0) return;
  if (names(path_, fd_)) unlink(path_.c_str());
  close(fd_);
  if (folder_ >= 0) close(folder_);
  fd_ = folder_ = -1;
}

}  // namespace snug
