// The one exception type of Snug. Every message a user can reach has three parts: what was
// expected, what was found, what to try. Callers add where it happened ("layer 7 / attention /
// backward") on the way up with add_note().
#pragma once

#include <exception>
#include <string>
#include <vector>

namespace snug {

enum class ErrorCode {
  usage,          // wrong key, flag or combination: exit code 2
  data,           // a file or value that cannot be used: exit code 2
  shape,          // extents or dtypes that do not belong together
  unsupported,    // recognised, and not available here
  out_of_memory,  // the budget is infeasible: exit code 3
  device,         // the operating system or a driver refused
  collective,     // another rank failed
  internal        // our own invariant broke: please report
};

const char* to_string(ErrorCode code);

class Error : public std::exception {
 public:
  // Three parts, none of them empty for errors a user can reach. `found` carries names, shapes with
  // their letters, file:line or tensor name.
  Error(ErrorCode code, std::string expected, std::string found, std::string advice);

  const char* what() const noexcept override { return text_.c_str(); }
  ErrorCode code() const noexcept { return code_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& found() const noexcept { return found_; }
  const std::string& advice() const noexcept { return advice_; }

  // Adds where the error happened; the innermost note is added first and printed first.
  Error& add_note(const std::string& note);

  // 2 for usage, data and unsupported, 3 for out_of_memory, 1 for the rest.
  int exit_code() const noexcept;

 private:
  void render();

  ErrorCode code_;
  std::string expected_, found_, advice_;
  std::vector<std::string> notes_;
  std::string text_;
};

// Throws Error. The usual spelling is
//   if (!ok) fail(ErrorCode::shape, "w of shape (C)=(768)", "w of shape (1024)", "pass --model
//   ...");
[[noreturn]] void fail(ErrorCode code, std::string expected, std::string found, std::string advice);

// For invariants of our own: throws with code internal and asks for a report. Not for user input.
void require(bool condition, const char* what);

}  // namespace snug
