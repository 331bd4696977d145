// What the folder of a run tells of it, for the report: while it goes, when it has ended, and after
// it was killed.
#pragma once

#include <string>
#include <string_view>

#include "tools/report/side_by_side.h"

namespace snug {

// The number behind "key": in a line of metrics.jsonl; NaN for null, and where there is none.
double number_in_line(std::string_view line, std::string_view key);

// In final/, written with its weights: {"step": the step that they are of}.
inline constexpr const char* kFinalFacts = "snug.json";

// One object a line for every start of the run, also of one that ended before it logged a step; those
// of before go if nothing of them `goes_on`. Throws device.
inline constexpr const char* kLegsFile = "legs.jsonl";
void begin_leg(const std::string& folder, const std::string& leg, bool goes_on);

// From metrics.jsonl, legs.jsonl, plan.json, memory.json, trainer_state.json, config.resolved.yaml and
// final/snug.json, each of which may be missing; one that is not what a run writes is left out, with
// a note. Of a long run some thousand lines stay, the last and spikes of loss, norm and memory among
// them. Throws device where metrics.jsonl cannot be read.
ReportRun read_run(const std::string& folder);
// The keys of config.resolved.yaml too.
ComparedRun read_compared_run(const std::string& folder);

}  // namespace snug
