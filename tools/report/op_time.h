// How long the ops of a step take, and where they run: the one place that pictures and traces ask.
// Before a run the times are a weight, after it they are those of a measured step.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory/simulate.h"
#include "tools/planner/plan.h"

namespace snug {

// Seconds an op is supposed to take: the larger of flops at 50 GFLOP/s and bytes at 10 GB/s. These
// rates are nobody's machine: shares of a step are worth reading, sums are not.
double op_seconds(const OpRecord& op);

// The lane an op is drawn in, its stream: 0 computes, 1 copies to the host, 2 copies back, 3 is the host beside
// these, 4 exchanges with other ranks; and kDiskLane of what reads or writes a disk.
inline constexpr int kDiskLane = kStreams;
int op_stream(const OpRecord& op);
const char* lane_name(int stream);  // in words
// Whether a tensor lies in the device's arena, which is the one that is drawn.
bool in_device_arena(const TensorRecord& tensor);

// Seconds of every op of some programs, by index in the schedule and in the program, and what they
// are: weights to draw by, a prediction, or a measurement.
struct StepTimes {
  enum class Source : uint8_t { weights, predicted, measured };
  Source source = Source::weights;
  std::string text;  // what a prediction rests on, which step was measured
  std::vector<std::pair<int, std::vector<double>>> programs;

  bool known() const { return source != Source::weights; }
  bool measured() const { return source == Source::measured; }
  // Those of a program; op_seconds() where there are none.
  std::vector<double> of(const Schedule& schedule, int program) const;
};
// What `seconds` says of every op of the plan; `text` is what it rests on.
StepTimes predicted_times(const Plan& plan, const std::function<double(const OpRecord&)>& seconds,
                          const std::string& text);

// "3.2 ms", "1.5 s".
std::string short_seconds(double seconds);
// "h.3 matmul"; the name alone without a scope.
std::string op_label(const OpRecord& op);

}  // namespace snug
