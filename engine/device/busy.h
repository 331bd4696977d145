// Whether other work had the processors of this process.
#pragma once

namespace snug {

// How long the threads that this process has now were ready and not running, summed, as Linux counts
// it (/proc/PID/task/TID/schedstat: ns run, ns waited, slices); 0 where it does not.
double waited_seconds();

}  // namespace snug
