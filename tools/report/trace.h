// A step as a trace in the Trace Event Format, which Perfetto (ui.perfetto.dev) and Chrome's own
// viewer open: ops as slices of their stream, memory by meaning as counters. The format: "Trace
// Event Format", the Chromium project, 2016; events X, C and M.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/planner/plan.h"
#include "tools/report/op_time.h"

namespace snug {

// One op that ran; seconds from the start of the step.
struct TraceOp {
  int32_t program = 0, op = 0;
  double begin = 0, end = 0;
};

struct StepTrace {
  std::vector<TraceOp> ops;  // in the order they were issued
  bool measured = false;
  int64_t step = 0;      // the one that was measured
  std::string text;      // what the times of a plan are
  int64_t left_out = 0;  // micro-steps that are not in `ops`, of programs that are
};

// One step from the plan alone, with these times; no more than `most` ops: micro-steps
// beyond that are left out, and counted.
StepTrace predicted_trace(const Plan& plan, const StepTimes& times = {}, int64_t most = 50000);

// What every file begins with and hardly another one.
inline constexpr std::string_view kTraceMark =
    "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"engine_bytes\":";

// The file. Slices carry scope, FLOPs and bytes; counters are the bytes alive in the device's arena
// by category, with the fullest moment between two ops, so that no peak is lost.
std::string trace_text(const Plan& plan, const StepTrace& trace);

}  // namespace snug
