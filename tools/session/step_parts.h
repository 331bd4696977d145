// A step as the programs that it runs, in order: the one place that knows which micro-step is which.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/memory/program.h"

namespace snug {

struct StepPart {
  int program;  // of the schedule
  int64_t runs;
};

// Of `accumulation` micro-steps, and the update; empty where nothing is trained.
std::vector<StepPart> step_parts(const Schedule& schedule, int64_t accumulation);
// The name of a step's first micro-step where there is no other.
inline const char* only_micro_step(const Schedule& schedule) {
  return schedule.find("micro_only") >= 0 ? "micro_only" : "micro_first";
}
// Whether a program is one of the micro-steps.
inline bool is_micro_step(const Program& program) {
  return program.name.view().starts_with("micro_");
}

}  // namespace snug
