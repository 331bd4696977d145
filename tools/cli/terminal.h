// Whether lines that are written over themselves, and colours, go to a terminal that shows them.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace snug {

// A terminal whose TERM is not dumb, where neither NO_COLOR (no-color.org) nor CI is set to
// anything.
inline bool lively_terminal(int file) {
  const auto said = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  const char* const term = std::getenv("TERM");
  return isatty(file) && !said("CI") && !said("NO_COLOR") &&
         (term == nullptr || std::string_view(term) != "dumb");
}

}  // namespace snug
