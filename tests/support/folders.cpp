#include "tests/support/folders.h"

#include <cstdlib>

namespace snug {

std::string source_folder() {
  return SNUG_SOURCE_DIR;
}

std::string binary_folder() {
  return SNUG_BINARY_DIR;
}

std::string program_under_test() {
  const char* const given = std::getenv("SNUG_PROGRAM");
  return given != nullptr ? given : binary_folder() + "/bin/snug";
}

}  // namespace snug
