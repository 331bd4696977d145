// Runs of a table: neighbours of one part (a block), or of none. What comes and goes by part does
// so in these.
#pragma once

#include <span>
#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

struct PartRun {
  int part;                 // -1: of none
  int param;                // its first one
  int64_t first, elements;  // of the flat range, a multiple of 256
};

// In the order of the table.
std::vector<PartRun> part_runs(const ParamTable& table);
// By parameter, which of them.
std::vector<int> run_of_params(const ParamTable& table);
// "weights.part3", or "weights.wte.weight" of what is of no part.
Name run_name(const char* what, const ParamTable& table, const PartRun& run);
// Those of the spans, which go up, that are inside a run.
std::span<const StateSpan> spans_of(std::span<const StateSpan> spans, const PartRun& run);

}  // namespace snug
