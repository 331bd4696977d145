// Micro-steps of fewer windows than planned: where rows share windows, the last ones of a step are
// often empty, and need not be computed. The record holds for a shorter micro-step if it makes the
// same tensors in the same order, none larger, and runs the same ops; kernels choose their workspace by
// the shapes, so this is seen by recording each.
#pragma once

#include <vector>

#include "tools/session/session.h"

namespace snug {

// Entry n, of micro_batch + 1: the windows to run where the first n are in use, at least n: the fewest
// that were tried (sixteen sizes) and keep to `schedule`. Of a place that captures graphs, or whose
// kernels are tuned by shape (cuda), micro_batch.
std::vector<int64_t> shorter_steps(Place place, const Model& model, const Decisions& decisions,
                                   const OptimizerConfig& optimizer, const Settings& settings,
                                   const Schedule& schedule);

// Whether `shorter` keeps to the record of `whole`.
bool keeps_to(const Program& shorter, const Program& whole);

}  // namespace snug
