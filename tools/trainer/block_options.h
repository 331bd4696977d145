// What the ways to run one block cost: each is recorded on the place `plan`, by the code that
// trains, and its bytes and seconds are read off the record. Nothing here knows a formula.
#pragma once

#include <string>
#include <vector>

#include "engine/memory/planner.h"
#include "tools/trainer/cost_model.h"
#include "tools/trainer/session.h"

namespace snug {

struct BlockOptions {
  std::vector<LayerOption> options;
  std::vector<std::string> names;  // in the grammar of layers/models/recompute.h
};

// Every set of stages whose outputs are made again (a number a row stays: it is small), and
// `block`, which keeps the input alone; those that another one beats in bytes and time are left
// out. For a block of `model`, whose blocks are all of one shape, in a session of these decisions.
// The first is always `none`.
BlockOptions record_block_options(const Model& model, const Decisions& decisions,
                                  const OptimizerConfig& optimizer, const Settings& settings,
                                  const CostModel& cost);

// The tick at which exactly what an op has at hand is alive: births and ends advance the clock, ops
// do not.
int64_t tick_of(const OpRecord& op);
// The largest sum of bytes alive at any tick of [first, last], as the packer rounds them.
int64_t most_live_bytes(const Program& program, int64_t first, int64_t last);

}  // namespace snug
