// Work on threads of one's own, for parts that are no loop over numbers (parallel.h).
#pragma once

#include <cstddef>
#include <functional>

namespace snug {

// Calls work(0) on this thread and work(1) to work(count - 1) on threads of their own, and returns
// when all are done. Where the system refuses a thread (a limit on processes, memory for stacks),
// the calls that got none are left out, so the work must be shared among those that run, as by a
// counter that each takes its next piece from. `work` must not throw.
void run_on_threads(size_t count, const std::function<void(size_t)>& work);

}  // namespace snug
