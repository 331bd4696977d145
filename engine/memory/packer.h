// Static placement (dynamic storage allocation): given the life of every tensor of a program,
// choose offsets in one arena so that tensors alive at the same time never overlap and the arena is
// small.
//
// The bound: at every moment the live tensors must all fit, so no layout is lower than the largest
// sum of live bytes. A layout of that height is optimal, and the moment together with the tensors
// alive at it (the witness) proves it. A transformer step is nearly nested (forward pushes,
// backward pops), and greedy orders reach the bound there. Where they miss it, a local search and
// an exact search follow. The exact search walks canonical layouts only, in the sense of M. D.
// Moffitt, "MiniMalloc" (ASPLOS 2023); see packer_search.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace snug {

// One tensor: alive in [born, died), in whatever unit of time the caller counts. An interval with
// died == born is never alive: like one of zero bytes it takes no room and is given offset 0.
struct Interval {
  int64_t born = 0, died = 0, bytes = 0;
};

struct PackOptions {
  // Offsets are multiples of this, and bytes are rounded up to it. Any number >= 1.
  int64_t alignment = 256;
  // Effort of the local and exact search that run only if no greedy order meets the bound. It is
  // turned into a number of counted steps (kPackStepsPerSecond), never measured with a clock, so
  // the same input gives the same layout on every machine. 0: greedy orders only.
  double seconds = 0.1;
};

// Counted steps per second of PackOptions::seconds; a recent core does about this many or more.
inline constexpr double kPackStepsPerSecond = 4e8;

enum class PackProof {
  lower_bound,  // height equals the lower bound: optimal, and the witness shows why
  exhausted,    // the search proved that no lower layout exists: optimal
  none          // neither: the gap height - lower_bound is open
};

const char* to_string(PackProof proof);

struct Packing {
  std::vector<int64_t> offsets;  // bytes, one per interval
  int64_t height = 0;            // bytes of arena needed
  int64_t lower_bound = 0;       // largest sum of live rounded bytes
  PackProof proof = PackProof::lower_bound;
  int64_t peak_time = 0;         // a moment at which lower_bound bytes are alive
  std::vector<int32_t> witness;  // the tensors with bytes > 0 alive then, ascending
  const char* method = "";  // what found the layout, in words: "longest life first, lowest gap"
};

// Deterministic: equal input, equal output. n tensors cost about n^2 / 2 very cheap steps per
// greedy order, of thousands of them as many as overlap in time, and usually one or two orders are
// enough.
// Errors: internal for alignment < 1, seconds negative or not a number, bytes < 0, died < born or
// 2^30 tensors; out_of_memory for rounded sizes whose sum passes 2^62.
Packing pack(std::span<const Interval> intervals, const PackOptions& options = {});

// Some valid layout, drawn by `seed`: random order, and for each tensor the lowest gap, the
// tightest gap or the upper end of a random gap. For tests that a program's results do not depend
// on where its tensors lie. Usually higher than pack(). Errors as pack().
std::vector<int64_t> pack_random(std::span<const Interval> intervals, int64_t alignment,
                                 uint64_t seed);

// Throws Error (internal) if the number of offsets is wrong, an offset is negative or no multiple
// of the alignment, or two tensors alive at the same time share a byte; the message names both
// tensors' indices. O(n log n).
void check_packing(std::span<const Interval> intervals, std::span<const int64_t> offsets,
                   int64_t alignment);

}  // namespace snug
