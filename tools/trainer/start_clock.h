// Where the time between the start of the process and the first training step goes.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace snug {

class StartClock {
 public:
  StartClock();
  // What was done since the last lap, or since the system started the process.
  void lap(const char* what);
  double seconds() const;  // up to the last lap
  // "started in 0.240 s: setup 0.020, ..., rest 0.004; processor time 0.190"; laps that take no 5
  // ms are summed as rest.
  std::string text() const;

 private:
  double began_;  // on the clock of monotonic_seconds
  double last_;
  double processor_ = 0;  // of all threads, up to the last lap
  std::vector<std::pair<const char*, double>> laps_;
};

}  // namespace snug
