// Where the tests find the sources and what was built. The two paths are compiled into one file, so
// that a compiler cache serves every other test file of another checkout.
#pragma once

#include <string>

namespace snug {

// The checkout: tests/golden, tools/*.sh, README.md.
std::string source_folder();
// The build folder: bin/, lib/.
std::string binary_folder();
// The command under test: SNUG_PROGRAM of the environment, else bin/snug of the build folder. The
// end to end tests are built once, without sanitizers, and run against the programs of two builds.
std::string program_under_test();
// Which sanitizer that program has, by the symbol its start calls.
bool program_has_address_sanitizer();
bool program_has_thread_sanitizer();
bool program_has_sanitizer();

}  // namespace snug
