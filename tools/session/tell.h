// What a run says while it goes, whoever reads it. fmt::print throws where the system refuses to
// write, and a pipe whose reader is gone (`snug train | head`) ends the process by a signal; a run
// that learns for days is to end for neither.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace snug {

// Writes as much as the system takes; what is refused shows in ferror() and nowhere else.
void tell_text(std::FILE* to, const std::string& text);

template <typename... Values>
void tell(std::FILE* to, fmt::format_string<Values...> format, Values&&... values) {
  tell_text(to, fmt::format(format, std::forward<Values>(values)...));
}

// From here on nothing is written: of a process for which another one speaks.
void mute_tell();

// From here on a write to a pipe without a reader is refused, and is no signal.
void outlive_readers();

// Takes back what standard output met because nobody reads it, for it is no failure of the run that
// there was no one to hear it. Anything else, such as a full disk, stays for the end of the program
// to report.
void forget_gone_reader();

}  // namespace snug
