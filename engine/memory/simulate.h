// When the ops of a program end that run on several streams: each stream runs its ops in order, an
// op starts when its stream is free and everything it waits for has ended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace snug {

struct StreamOp {
  double seconds = 0;
  int stream = 0;
  std::vector<int32_t> waits = {};  // earlier ops, of other streams too
};

struct StreamTimes {
  double seconds = 0;           // until the last op has ended
  std::vector<double> ends;     // of every op
  std::vector<double> busy;     // of every stream
  std::vector<double> stalled;  // of every stream: between its ops, waiting for others
};

// Errors (internal): negative seconds, a stream outside 0..63, a wait for the op itself or a later
// one.
StreamTimes simulate_streams(std::span<const StreamOp> ops);

}  // namespace snug
