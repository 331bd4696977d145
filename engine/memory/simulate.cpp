#include "engine/memory/simulate.h"

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

StreamTimes simulate_streams(std::span<const StreamOp> ops) {
  StreamTimes times;
  std::vector<double> free;  // of every stream: when it is
  times.ends.reserve(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    const StreamOp& op = ops[i];
    require(op.seconds >= 0 && op.stream >= 0 && op.stream < 64,
            "ops of 0 seconds or more on streams 0 to 63");
    const auto s = static_cast<size_t>(op.stream);
    if (s >= free.size()) {
      free.resize(s + 1, 0.0);
      times.busy.resize(s + 1, 0.0);
      times.stalled.resize(s + 1, 0.0);
    }
    double start = free[s];
    for (const int32_t w : op.waits) {
      require(w >= 0 && static_cast<size_t>(w) < i, "ops to wait for earlier ones");
      start = std::max(start, times.ends[static_cast<size_t>(w)]);
    }
    times.stalled[s] += start - free[s];
    times.busy[s] += op.seconds;
    free[s] = start + op.seconds;
    times.ends.push_back(free[s]);
    times.seconds = std::max(times.seconds, free[s]);
  }
  return times;
}

}  // namespace snug
