#include "engine/core/error.h"

#include <utility>

#ifdef __SANITIZE_ADDRESS__
// Undefined behaviour traps in such a build (CMakeLists.txt): the signal gets a report with the line.
// Weak: a program may have options of its own.
extern "C" [[gnu::weak]] const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "handle_sigill=1";
}
#endif

namespace snug {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::usage:
      return "usage";
    case ErrorCode::data:
      return "data";
    case ErrorCode::shape:
      return "shape";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::device:
      return "device";
    case ErrorCode::collective:
      return "collective";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

Error::Error(ErrorCode code, std::string expected, std::string found, std::string advice)
    : code_(code),
      expected_(std::move(expected)),
      found_(std::move(found)),
      advice_(std::move(advice)) {
  render();
}

Error& Error::add_note(const std::string& note) {
  notes_.push_back(note);
  render();
  return *this;
}

void Error::render() {
  text_ = std::string(to_string(code_)) + ": expected " + expected_;
  text_ += "\n  found: " + found_;
  if (!notes_.empty()) {
    text_ += "\n  in:    ";
    for (size_t i = 0; i < notes_.size(); ++i) text_ += (i ? " < " : "") + notes_[i];
  }
  if (!advice_.empty()) text_ += "\n  try:   " + advice_;
}

int Error::exit_code() const noexcept {
  switch (code_) {
    case ErrorCode::usage:
    case ErrorCode::data:
    case ErrorCode::unsupported:
      return 2;
    case ErrorCode::out_of_memory:
      return 3;
    default:
      return 1;
  }
}

void fail(ErrorCode code, std::string expected, std::string found, std::string advice) {
  throw Error(code, std::move(expected), std::move(found), std::move(advice));
}

void require(bool condition, const char* what) {
  if (!condition)
    fail(ErrorCode::internal, what, "the opposite",
         "this is a defect in Snug: please report it with the command you ran");
}

}  // namespace snug
