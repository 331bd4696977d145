// What a terminal shows, and lines that fit it.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace snug {

// Whether lines that are written over themselves, and colours, go to a terminal that shows them: one
// whose TERM is not dumb, where neither NO_COLOR (no-color.org) nor CI is set to anything.
inline bool lively_terminal(int file) {
  const auto said = [](const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  const char* const term = std::getenv("TERM");
  return isatty(file) && !said("CI") && !said("NO_COLOR") &&
         (term == nullptr || std::string_view(term) != "dumb");
}

// Columns of standard output: what COLUMNS says, if it is a number of 20 or more, else those of a
// terminal; 0: no terminal, lines may be of any length.
int terminal_columns();

// `text` with every longer line broken at spaces. What follows stands under the last cell of a row
// of a table where that leaves it room, else two columns further in than the line. Words are never
// broken, so that paths and keys can be copied. 0 columns: as it is.
std::string fit_columns(std::string_view text, int columns);
// The same by terminal_columns().
std::string fit_terminal(std::string_view text);

}  // namespace snug
