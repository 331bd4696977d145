// The solver of plans: a stack of layers, each with a list of ways to run it that cost memory or
// time, and the fastest choice that stays inside a limit. It knows bytes and seconds and no layer.
//
//   forward, layer by layer              backward, in reverse
//   saved 0 | saved 1 | saved 2 | tail   saved 0 | saved 1 + transient 1
//
//   feasible   saved of layers 0..l + transient of l <= limit for every l,
//              saved of all layers + tail           <= limit,  host bytes <= host limit
//   time       sum over layers of compute + max(0, link - compute)
//
// Exact: dynamic programming over layers whose labels are (bytes, host bytes, seconds); a label
// that another beats in all three is dropped, and so is one that a Lagrangian bound proves worse
// than the best plan of two groups, which is found first, in closed form.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace snug {

// One way to run a layer.
struct LayerOption {
  int64_t saved = 0;      // device bytes from its forward to its backward
  int64_t transient = 0;  // device bytes on top of all saved ones, at most, while the layer runs
  int64_t host = 0;       // bytes in host memory from its forward to its backward
  double link = 0;        // seconds of traffic between device and host, forward and backward
  double compute = 0;     // seconds of computing, forward, recomputation and backward

  double seconds() const { return compute + (link > compute ? link - compute : 0.0); }
};

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;

struct LayerProblem {
  std::vector<std::vector<LayerOption>> kinds;  // a list of options; equal layers share one
  std::vector<int> layers;                      // the kind of each layer, in forward's order
  int64_t tail = 0;                             // bytes on top of all saved ones between the passes
  int64_t limit = kNoLimit, host_limit = kNoLimit;
};

struct SolveOptions {
  // A plan of two groups (the first layers one option, the others another) is taken if it is slower
  // than the best by no more than this share. 0: the best, whatever its form. Above 0 a larger
  // limit may give a plan slower by up to this share; with 0 it never does.
  double two_group_tolerance = 0.005;
  // Labels of a layer at most; beyond it the fastest are kept and the result is no longer exact.
  int64_t most_labels = 400000;
};

struct LayerSolution {
  bool feasible = false;
  std::vector<int> choice;  // of every layer: the index of its option
  double seconds = 0;
  int64_t peak = 0;   // device bytes at most
  int64_t saved = 0;  // of all layers
  int64_t host = 0;
  double bound = 0;      // no choice is faster
  bool optimal = false;  // seconds is the least there is
  int groups = 0;        // runs of equal options

  double gap() const { return seconds > 0 ? (seconds - bound) / seconds : 0.0; }
};

// Deterministic: equal input, equal output. If nothing fits `feasible` is false and `choice` empty.
// Errors (internal): a kind without options, a layer of no kind, negative bytes or seconds.
LayerSolution solve_layers(const LayerProblem& problem, const SolveOptions& options = {});

// The least limit under which there is a choice at all, and the fastest choice there; feasible is
// false only if the host limit excludes every choice.
LayerSolution least_peak(const LayerProblem& problem);

// Which options no other one beats: less or equal in every one of saved, saved + transient, host
// and seconds, less in one (of equal ones the first stays). Ascending indices.
std::vector<int> efficient_options(std::span<const LayerOption> options);

// What a choice costs; `feasible` says whether it keeps the limits.
LayerSolution evaluate_layers(const LayerProblem& problem, std::vector<int> choice);

// "optimal within the layer model", or how far from it: "within 0.3 % of the best possible".
std::string optimality_text(const LayerSolution& solution);

}  // namespace snug
