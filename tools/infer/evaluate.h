// Mean loss over the held-out samples of a run, batch by batch, with a session's eval program.
#pragma once

#include <string>

#include "layers/tasks/metrics.h"
#include "tools/session/session.h"
#include "tools/setup/run_data.h"

namespace snug {

struct EvalResult {
  double loss = 0;     // mean over trained targets, nats
  MetricList metrics;  // of a task that has some
  int64_t tokens = 0;
  double seconds = 0;
};

// exp(loss) for a reader: with so many decimals; from 1e9 on as "1.234e+57", beyond the largest
// double "above 1.8e+308". A NaN has no sign.
std::string perplexity_text(double perplexity, int decimals);

// Leaves StepState as a window's start; call it between windows. The last batch is filled up with
// ignored targets, so every batch has the planned shape. The samples together hold a target, which
// prepare_data (run_data.h) sees to.
EvalResult evaluate_samples(Session& session, const RunData& data, int64_t samples,
                            Metrics* metrics = nullptr);

// Perplexity with a sliding window, as in Hugging Face's guide for models of a fixed length:
// windows of T tokens begin every `stride` tokens of a file (1 <= stride < T), and each scores the
// tokens that no earlier one did, so that every token but a file's first is scored once and, past
// the first window, with at least T - stride tokens before it. The mean is over all scored tokens.
// At most max_windows windows (0: all); no window crosses a file's end.
EvalResult evaluate_strided(Session& session, const WindowDataset& data, int64_t stride,
                            int64_t max_windows);

}  // namespace snug
