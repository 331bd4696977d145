// The rows of a run: what encoders and token rows are trained and evaluated on (engine/data/row_*).
// They are read before the model is made, since their labels say how many outputs it has.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/row_packing.h"
#include "engine/data/row_reader.h"
#include "layers/parts/spec.h"
#include "tools/config/run_config.h"
#include "tools/session/session.h"
#include "tools/setup/scratch_folder.h"

namespace snug {

class RowData {
 public:
  // Reads train_data and eval_data (or, of commands that only evaluate, eval_data alone). `spec` has
  // the head; its labels are those that are asked for, if `known`, and become those of the data.
  // T: tokens of a window; G: rows of a step. Throws usage and data.
  RowData(const RunConfig& config, const std::optional<Tokenizer>& tokenizer, ModelSpec& spec,
          bool known, int64_t T, int64_t G);

  // Tokenised rows that fit no label, for people; lines of what was read and assumed.
  const std::vector<std::string>& notes() const { return notes_; }
  const std::string& text() const { return text_; }

  int64_t rows_per_window() const { return rows_per_window_; }
  int64_t windows_per_step() const { return windows_; }  // expected
  double mean_length() const { return mean_length_; }
  int64_t train_rows() const { return train_ ? train_->train_rows() : 0; }
  int64_t eval_rows() const { return eval_rows_; }
  std::string fingerprint() const;

  // Of optimizer step `step`.
  int64_t windows(int64_t step) { return train_->windows(step); }
  int64_t trained(int64_t step) { return train_->trained(step); }
  void fill(int64_t step, int64_t first_window, Session& session);

  // Of evaluation step e, rows [e G, (e + 1) G).
  int64_t eval_steps() const;
  int64_t eval_windows(int64_t e) { return evaluated().eval_windows(e); }
  void fill_eval(int64_t e, int64_t first_window, Session& session);

 private:
  RowDataset& evaluated() { return eval_ ? *eval_ : *train_; }
  RowBlock block(Session& session) const;

  ScratchFolder folder_;
  HeadKind head_;
  Problem problem_;
  std::optional<RowDataset> train_, eval_;
  std::vector<std::string> notes_;
  std::string text_;
  int64_t rows_per_window_ = 0, windows_ = 0, eval_rows_ = 0;
  double mean_length_ = 0;
};

// Targets a window of T tokens may have under masking: the expected number and six deviations.
int64_t masked_rows(int64_t T, double probability);

}  // namespace snug
