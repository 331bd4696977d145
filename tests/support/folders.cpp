#include "tests/support/folders.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace snug {
namespace {

bool program_holds(const char* symbol) {
  static const std::string bytes = [] {
    std::ifstream file(program_under_test(), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  return bytes.find(symbol) != std::string::npos;
}

}  // namespace

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

bool program_has_address_sanitizer() {
  return program_holds("__asan_init");
}

bool program_has_thread_sanitizer() {
  return program_holds("__tsan_init");
}

bool program_has_sanitizer() {
  return program_has_address_sanitizer() || program_has_thread_sanitizer();
}

}  // namespace snug
