#include "parallel/group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "engine/core/error.h"

namespace snug {

void Group::throw_given_up() const {
  fail(ErrorCode::collective, fmt::format("all {} ranks to go on", size_), reason(),
       "resume=latest where there is a checkpoint, once the reason is gone; a longer ddp_timeout "
       "for ranks that are slow");
}

void Group::throw_apart(const std::string& found) const {
  fail(ErrorCode::collective, "all ranks at the same collective", found,
       "the same program, configuration and data for every rank");
}

std::string Group::apart_text(const char* what, uint64_t tag, int other, const char* others_what,
                              uint64_t others_tag, int64_t call) const {
  return fmt::format("rank {} at {} ({}), rank {} at {} ({}), call {}", rank_, what, tag, other,
                     others_what, others_tag, call);
}

std::string Group::late_text(const char* what, const char* last) const {
  return fmt::format("it did not come to {} within {:.0f} s; it was last at {}", what, timeout(),
                     last);
}

std::string Group::gone_text(int pid, const char* last) {
  return fmt::format("its process {} is gone; it was last at {}", pid, last);
}

// Takes no memory.
bool process_gone(int pid) {
  if (kill(pid, 0) != 0) return errno == ESRCH;
  char text[512];
  *fmt::format_to_n(text, sizeof text - 1, "/proc/{}/stat", pid).out = '\0';
  const int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t n = read(file, text, sizeof text);
  close(file);
  // The name, which may hold anything, ends with the last parenthesis.
  for (ssize_t i = n - 3; i > 0; --i)
    if (text[i] == ')') return text[i + 2] == 'Z' || text[i + 2] == 'X';
  return false;
}

}  // namespace snug
