// Stacks of which layers offload: every plan of two groups, what it needs and how fast it may be at
// best; and the question for the solver of stacks whose layers each have a way of their own.
//
//   layers  0 .. first - 1   one way that sends slots to the host's memory
//           first .. L - 1   one way that keeps or recomputes, so that the last copies are hidden
//
// Bytes are exact: they are those of the record of the whole (tests/tools/test_plan_residence.cpp).
// Seconds are a bound from below, since copies share a link and wait for events; what a plan takes
// is read off its record.
#pragma once

#include <vector>

#include "engine/memory/linked_layers.h"
#include "tools/costs/block_options.h"

namespace snug {

struct StackProblem {
  const StackOptions* options = nullptr;
  int64_t layers = 0;
  int64_t tail = 0;       // device bytes between the passes, beyond what layers saved
  int64_t tail_back = 0;  // of them, when the last layer's slots begin to come back
  double hidden = 0;      // seconds of computing between that and the last layer's backward
  int64_t limit = kNoLimit, host_limit = kNoLimit;
  int64_t sum_limit = kNoLimit;  // of both together
};

struct StackPlan {
  int away = 0, kept = 0;  // options of the first layers and of the others
  int64_t first = 0;       // layers of the first group, 1 or more
  int64_t peak = 0, host = 0;
  double bound = 0;  // seconds of the layers' forward and backward at least
};

// One of them, `first` layers of option `away`.
StackPlan stack_plan(const StackProblem& problem, int away, int kept, int64_t first);
// All that keep the limits and may be faster than `below`, the fastest first.
std::vector<StackPlan> stack_plans(const StackProblem& problem, double below);
// The one of the smallest peak within the limits of the host and of both; false if there is none.
bool least_stack(const StackProblem& problem, StackPlan* least);
// The ways of all layers.
LayerWords stack_recompute(const StackProblem& problem, const StackPlan& plan);
LayerWords stack_offload(const StackProblem& problem, const StackPlan& plan);

// The same problem for engine/memory/linked_layers.h: options are those of `kept`, then of `away`.
LinkedProblem linked_problem(const StackProblem& problem);
std::vector<int> linked_choice(const StackProblem& problem, const StackPlan& plan);
LayerWords linked_recompute(const StackOptions& options, const std::vector<int>& choice);
LayerWords linked_offload(const StackOptions& options, const std::vector<int>& choice);

}  // namespace snug
