#include "tools/trainer/start_clock.h"

#include <fmt/format.h>

#include "engine/device/processors.h"
#include "engine/memory/context.h"

namespace snug {

StartClock::StartClock() {
  began_ = monotonic_seconds() - seconds_since_start();
  last_ = began_;
  laps_.reserve(16);
}

void StartClock::lap(const char* what) {
  const double now = monotonic_seconds();
  laps_.emplace_back(what, now - last_);
  last_ = now;
  processor_ = process_cpu_seconds();
}

double StartClock::seconds() const {
  return last_ - began_;
}

std::string StartClock::text() const {
  std::string parts;
  double rest = 0;
  for (const auto& [what, seconds] : laps_) {
    if (seconds < 0.005)
      rest += seconds;
    else
      parts += fmt::format("{} {:.3f}, ", what, seconds);
  }
  return fmt::format("started in {:.3f} s: {}rest {:.3f}; processor time {:.3f}", seconds(), parts,
                     rest, processor_);
}

}  // namespace snug
