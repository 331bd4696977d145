// What the fuzz targets share: files in memory, and the promises every reader makes to any input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

// The entry point of a target, as libFuzzer names it. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace snug::fuzz {

// Ends the program, which is how a fuzzer learns of a broken promise.
[[noreturn]] void broken(const std::string& promise);
inline void check(bool kept, const char* promise) {
  if (!kept) broken(promise);
}

// Bodies of holds() that came to their end. A corpus of which none does proves nothing.
extern int64_t completed;
// Runs `body`. True if it came to its end; false if it threw an Error, whose code must not be
// internal and whose three parts must all say something. Anything else that is thrown is broken.
bool holds(const std::function<void()>& body);
// The same where no error is due: what we wrote ourselves must be read.
void must(const char* promise, const std::function<void()>& body);

// A folder of this process, in memory where the system has such a place, removed at exit.
const std::string& folder();
// Writes a file there, one of the same name replaced, and returns its path.
std::string put(const std::string& name, std::string_view content);
void drop(const std::string& name);

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}
// The parts of an input between lines "----"; always as many as asked for, the last ones empty.
std::vector<std::string_view> parts_of(std::string_view input, size_t count);

// The first n bytes, as a number; they are taken off the text. 0 beyond its end.
uint64_t take_number(std::string_view& text, size_t n);

}  // namespace snug::fuzz
