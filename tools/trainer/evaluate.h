// Mean loss over the held-out samples of a run, batch by batch, with a session's eval program.
#pragma once

#include "tools/trainer/run_data.h"
#include "tools/trainer/session.h"

namespace snug {

struct EvalResult {
  double loss = 0;  // mean over trained targets, nats
  int64_t tokens = 0;
  double seconds = 0;
};

// Leaves StepState as a window's start; call it between windows. The last batch is filled up with
// ignored targets, so every batch has the planned shape.
EvalResult evaluate_samples(Session& session, const RunData& data, int64_t samples);

}  // namespace snug
