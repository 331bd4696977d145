// The solver of stacks whose layers send tensors to the host and fetch them again: any option for
// any layer, where an option says what stays on the device, what goes over the link, and how long
// each stream works. It knows bytes, seconds and three streams, and no layer.
//
//   compute     | forward 0 | forward 1 | forward 2 |  tail  | backward 2 | backward 1 | ..
//   to host        | 0 ~~~~~~~ | 1 ~~~~~~~ |
//   to device                                     | 2 ~~ | 1 ~~~~~~~ | 0 ~~~~~~ |
//
//   forward l    waits at its end for what l - 1 sent, or earlier, before it sends the same tensor
//   backward l   begins the fetch for l - 1, and waits for its own before it needs it
//
// With f, h the ends of compute and of the link after the forward of a layer, and p, q the same of
// its backward and all that come after it, both passes are one recursion (backward reversed):
//
//   f' = max(f + forward_seconds, h + after_sent)     h' = max(h, f + before_sent) + to_host
//   p' = max(p + backward_seconds, q)                 q' = max(q, p + after_arrival) + to_device
//   seconds = max(f, h) + max(p, q - hidden)
//
// Bytes are exact. Seconds are no more than what the streams take: of several copies of a layer the
// first may begin when one may, and the last is waited for once.
//
// Exact within that: dynamic programming over layers with labels (bytes, host bytes, f, h, p, q,
// last option). Only sums and lags matter of the times, so a label that another beats in bytes,
// host bytes and the four sums f + p, f + q, h + p, h + q is dropped if what follows meets the same
// neighbour; so is one that a Lagrangian bound proves no better than the ceiling.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/memory/planner.h"

namespace snug {

// One way to run a layer. Bytes are the device's but for `host`.
struct LinkedOption {
  int64_t saved = 0;     // from its forward to its backward
  int64_t backward = 0;  // at most in its backward, beyond what the layers before saved
  int64_t coming = 0;    // back from the host before its backward begins
  int64_t host = 0;      // with the host in between
  double forward_seconds = 0, backward_seconds = 0;  // of computing
  double to_host = 0, to_device = 0;                 // of copying
  double before_sent = 0;                            // of forward_seconds, before the first copy
  double after_arrival = 0;  // of backward_seconds, after the wait for the last copy

  bool linked() const { return coming > 0 || to_host > 0 || to_device > 0; }
};

// What a layer meets in its forward of the layer before.
struct LinkedPair {
  int64_t forward = 0;    // at most in its forward, beyond what the layers before saved
  double after_sent = 0;  // of its forward_seconds, after the wait for what the other sent last
};

struct LinkedProblem {
  std::vector<LinkedOption> options;  // of every layer
  std::vector<LinkedPair> pairs;      // [before * options + own]; those behind no link are alike
  std::vector<int64_t> alone;         // of each option, the same peak of the first layer
  int64_t layers = 0;
  int64_t tail = 0;       // device bytes between the passes, beyond what layers saved
  int64_t tail_back = 0;  // of them, when the last layer's tensors begin to come back
  double hidden = 0;      // seconds of computing between that and the last layer's backward
  int64_t limit = kNoLimit, host_limit = kNoLimit;

  const LinkedPair& pair(int before, int own) const {
    return pairs[static_cast<size_t>(before) * options.size() + static_cast<size_t>(own)];
  }
};

struct LinkedSolution {
  bool feasible = false;
  std::vector<int> choice;  // of every layer: the index of its option
  double seconds = 0;       // of both passes, at least
  int64_t peak = 0, host = 0;
  // No choice within the limits is faster, or none that the ceiling allows: then it is the ceiling.
  double bound = 0;
  bool cut = false;  // labels were dropped for their number: `bound` is the Lagrangian one
};

// What a choice takes; `feasible` says whether it keeps the limits.
LinkedSolution evaluate_linked(const LinkedProblem& problem, std::vector<int> choice);

// The fastest choice that takes less than `ceiling` seconds; of equally fast ones one of few
// changes between neighbours. Not feasible: there is none, or it was cut away. Deterministic.
// Errors (internal): no layers or options, lists whose lengths do not agree, negative numbers.
LinkedSolution solve_linked(const LinkedProblem& problem, double ceiling, int64_t most_labels);

// The choice of the smallest peak there is, whatever `limit` says, if that is less than `below`;
// not feasible: there is none. Exact, within the host's limit.
LinkedSolution least_linked(const LinkedProblem& problem, int64_t below);

// Seconds that no choice within the limits is below, in closed form; infinite if none fits. If they
// are `enough` or more they may be any such: that is known sooner.
double linked_bound(const LinkedProblem& problem, double enough = INFINITY);

}  // namespace snug
