// Launch: one command starts the processes of its ranks, waits for them and ends as they do.
//
//   snug train ranks=3       the process that was called: starts three of itself and waits
//     rank 0                 leads: speaks, writes files; its exit code is the command's
//     rank 1, 2              follow: what they would say goes to rank 0 or nowhere
//
// A signal that the first process gets goes to rank 0, which tells the others at the end of a step; a
// terminal sends its own to all of them. A rank that dies is named, and the others end within seconds:
// kMercy after the first bad end whoever is left is killed.
#pragma once

#include <memory>

#include "parallel/local_group.h"

namespace snug {

inline constexpr const char* kRankVariable = "SNUG_RANK";
inline constexpr double kMercy = 20;  // seconds

// Runs this command, with its arguments, once for each rank; returns the exit code. Call before threads
// are started. Throws device.
int launch_ranks(int ranks);

// The group of a process that launch_ranks() started; null: it was not.
std::unique_ptr<Group> launched_group();

}  // namespace snug
