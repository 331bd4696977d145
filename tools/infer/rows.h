// Sessions that are not trained and read rows: a head's loss, metrics and answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/infer/inference.h"
#include "tools/setup/row_data.h"

namespace snug {

struct RowInference {
  std::shared_ptr<RowData> rows;
  Inference in;  // eval_batch windows of rows->T() tokens
};

// Reads config.eval_data and opens a session for it. `length`: tokens of a row at most, 0: the
// smaller of 1024 and the model's positions. Without use.labels rows are there to be answered
// (answer_rows). Throws usage and data, of a causal model rows are tokens.
RowInference open_rows(InferenceOptions options, const RunConfig& config, int64_t length,
                       RowUse use);

// What a head says of a row, or of a place in it.
struct Answer {
  int64_t place = 0;  // RowData::Place
  // Classes with their probabilities: softmax, of several labels each its own sigmoid, all of them
  // in order; of a masked LM the likeliest tokens, first the best. Regression: values.
  std::vector<std::pair<int32_t, double>> scores;
  const std::pair<int32_t, double>& best() const;
};

// Calls `each` for every row in the order of the data, with its answers in the order of their
// places; a row of tokens may have none. `top`: tokens of a mask. Throws data for logits that are
// not finite, naming the row.
void answer_rows(RowInference& r, int64_t top,
                 const std::function<void(int64_t row, const std::vector<Answer>&)>& each);

}  // namespace snug
