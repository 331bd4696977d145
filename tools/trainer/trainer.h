// The trainer: reads data, asks for a plan, prints it, reserves, runs programs, logs, evaluates,
// writes checkpoints, resumes.
#pragma once

#include "tools/config/run_config.h"

namespace snug {

// Runs to the end. Returns the exit code: 0 done, 1 the loss or a gradient is not finite, 75
// stopped by a signal after a checkpoint, 130 stopped by a signal before the first step was due.
// Errors before training leave nothing behind; a budget that is too small is out_of_memory.
int train(const RunConfig& config);

// From here on SIGUSR1 asks the run for a checkpoint, behind its first step at the earliest; without it
// that signal ends a process.
void watch_for_save();

}  // namespace snug
