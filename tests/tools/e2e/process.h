// Runs the snug program of this build as a child process, as a user would.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace snug::e2e {

struct Outcome {
  int code = -1;  // exit code; 128 + the signal's number if one ended the child
  std::string out, err;
};

// A child whose standard output comes line by line: it cannot get further than one line ahead of
// the reader, so that a test can act in the middle of a run however fast the run is.
class Child {
 public:
  // Starts `before... snug arguments...`: a program, by its path, that starts another.
  explicit Child(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& before = {});
  ~Child();  // ends the child if it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The next piece the child wrote (a line, or several at the start); empty at the end.
  std::string next();
  // Reads until a piece holds `text`. False if the output ends before.
  bool read_until(const std::string& text);
  // Goes away as a reader: nothing that the child writes from now on is taken.
  void stop_reading();
  void send(int signal) const;
  pid_t pid() const { return pid_; }
  // Waits until the child waits for its output to be read.
  bool waits() const;
  // Waits up to `milliseconds` without reading; true if the child has ended.
  bool ends_unread(int milliseconds);
  // Reads the rest and waits.
  Outcome finish();

 private:
  pid_t pid_ = -1;
  int out_ = -1, status_ = 0;
  bool waited_ = false;
  std::string seen_, error_path_;
};

// `snug arguments...` to its end with `input` on standard input. A child that takes longer than
// two minutes is ended and reported as a failure of the test.
Outcome run(const std::vector<std::string>& arguments, const std::string& input = "");
// A shell command line in which $SNUG is the program.
Outcome shell(const std::string& command);

}  // namespace snug::e2e
