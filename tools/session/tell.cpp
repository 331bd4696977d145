#include "tools/session/tell.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <csignal>

namespace snug {
namespace {

// Also where it was closed before the program began: main() then holds it open for reading.
bool reader_gone(int fd) {
  const int mode = fcntl(fd, F_GETFL);
  if (mode < 0 || (mode & O_ACCMODE) == O_RDONLY) return true;
  pollfd end = {fd, 0, 0};
  return poll(&end, 1, 0) == 1 && (end.revents & (POLLERR | POLLHUP)) != 0;
}

bool muted = false;

}  // namespace

void mute_tell() {
  muted = true;
}

void tell_text(std::FILE* to, const std::string& text) {
  if (muted) return;
  std::fwrite(text.data(), 1, text.size(), to);
}

void outlive_readers() {
  std::signal(SIGPIPE, SIG_IGN);
}

void forget_gone_reader() {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  if (!reader_gone(STDOUT_FILENO)) return;
  __fpurge(stdout);  // or the exit would try again
  std::clearerr(stdout);
}

}  // namespace snug
