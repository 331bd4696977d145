// The log of a run that goes on from a checkpoint of another folder: its curve reads as if the run
// had begun there.
#pragma once

#include <string>

#include "tools/trainer/run_log.h"

namespace snug {

// Writes what a checkpoint's trainer_state.json (trainer_state.h) has of the log to metrics.jsonl
// in `output_dir`, line by line as they were, and to metrics.csv and runs/ as `sinks` ask. A
// checkpoint without that file leaves the log empty. Throws device.
void restore_log(const std::string& checkpoint, const std::string& output_dir,
                 const RunSinks& sinks);

}  // namespace snug
