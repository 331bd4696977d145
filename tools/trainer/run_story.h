// What the folder of a run tells of it, for the report: while it goes, when it has ended, and after
// it was killed.
#pragma once

#include <string>
#include <string_view>

#include "tools/report/side_by_side.h"

namespace snug {

// The number behind "key": in a line of metrics.jsonl; NaN for null, and where there is none.
double number_in_line(std::string_view line, std::string_view key);

// From metrics.jsonl, plan.json, memory.json, trainer_state.json and config.resolved.yaml, each of
// which may be missing. Of a long run some thousand lines stay, the last and spikes of loss and
// norm among them. Throws data where one of the files is not what a run writes.
ReportRun read_run(const std::string& folder);
// The keys of config.resolved.yaml too.
ComparedRun read_compared_run(const std::string& folder);

}  // namespace snug
