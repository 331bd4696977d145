// Batches of rows: the rows of an optimizer step, back to back in windows of T tokens; nothing is
// padded but the end of a window.
//
// Step s of a run has samples s*G .. s*G + G - 1 (G the global batch), epochs following each other;
// which row sample k is, is a function of (seed, k) alone (dataset_order.h). Its rows are packed
// first-fit in order of decreasing length, of equal ones the earlier sample first, into W windows of
// at most `room` tokens: the W and the room up to T for which W times the fullest window is least, so
// that windows end up about equally full (Coffman, Garey and Johnson, "An application of bin-packing
// to multiprocessor scheduling", 1978). Tried are the W from the least there could be on, up to that
// of room T and at most 8 more, and for each the rooms in 64 steps from the least there could be to T,
// up to the first that does and while W times the room is below the best so far; of equal ones the
// first. Which window a row is in is so a function of the step's rows, not of the micro-batch, and any
// split of the windows sees the same numbers.
//
// Who runs windows in a micro-batch need not run them whole: the tokens in use of some windows
// (extent()) are those of the fullest, and fill() puts windows as far apart as one asks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/data/dataset_order.h"
#include "engine/data/row_file.h"
#include "engine/data/token_masking.h"

namespace snug {

struct RowDatasetOptions {
  int64_t T = 512;                  // tokens of a window
  int64_t global_batch = 32;        // G: rows of a step
  int64_t eval_batch = 0;           // rows of a step of evaluation; 0: G
  int64_t max_rows_per_window = 0;  // at least 1; 0: T
  uint64_t seed = 42;
  bool shuffle = true;  // false: samples in the order of the file
  // In [0, 1): the share of rows held out, at least one: those that a seeded order puts first; the
  // last ones without shuffle.
  double eval_fraction = 0.0;
  int64_t max_eval_rows = 0;  // of an evaluation, its first ones; 0: all
  // True: a token's target is the label of the next token of its row (causal language models); the
  // last of a row has none.
  bool shift_labels = false;
  // Masked language modelling; the file's own token labels are then not used.
  std::optional<MaskingOptions> masking = {};
  // A row is a pair (pair_rows.h): two documents, of token types 0 and 1, each of at most half of T. With
  // shift_labels, and trained() counts rows.
  bool pairs = false;
  // Of pairs: a row is one of the two, of token type 0 or 1, of at most T, and the other is empty.
  bool single = false;
  // Of pairs: all tokens of the first document are targets but its first, which has none before it.
  bool whole_chosen = false;
  // RowBlock::first says the last token of a row that is not `padding`, its first if all are.
  bool last_token = false;
  int32_t padding = -1;
  // Above 0: RowBlock's target lists of this length for each window. With masking no more tokens
  // of a window become targets, those of its first rows do. Without masking it must be T.
  int64_t max_targets_per_window = 0;
};

// What RowBlock::pairs says of a pair.
struct PairPlace {
  int32_t chosen = -1, rejected = -1, end = -1;  // index of their first tokens, and behind the last
  // Tokens that are trained where they stand; with whole_chosen those of answers that have one before them.
  int32_t chosen_tokens = -1, rejected_tokens = -1;
  // Index of the first token whose target is of the chosen answer; without whole_chosen that of `chosen`.
  int32_t answer = -1;
  // With whole_chosen, targets of the first documents of the step's pairs, and these pairs; else 0. Whose
  // rows are compared writes the bits of a float in place of the first (layers/ops/pair_loss.h).
  int32_t step_targets = -1, step_pairs = -1;
};
inline constexpr int64_t kPairWords = 8;
static_assert(sizeof(PairPlace) == 4 * kPairWords, "as a row of a tensor");

// Where fill writes `count` windows; null: not wanted. R = max_rows_per_window, M =
// max_targets_per_window. Indices are positions in the filled block, w*T + t with w from 0; of
// windows `stride` apart T is that everywhere below.
struct RowBlock {
  int32_t* tokens = nullptr;          // (count, T); 0 behind the last row of a window
  int32_t* document_start = nullptr;  // (count, T) place in the window of the first token of the
                                      // token's row; behind the last row they are a row themselves
  int32_t* types = nullptr;           // (count, T)
  int32_t* targets = nullptr;         // (count, T) token labels, or what masking hid; else -100
  int32_t* first = nullptr;           // (count, R) index of the first token of each row, else -1
                                      // (RowDatasetOptions::last_token: of the last)
  int32_t* labels = nullptr;          // (count, R) class ids, else -100
  float* values = nullptr;            // (count, R, K), else 0: `first` tells which are rows
  int32_t* target_at = nullptr;  // (count, M) index of each token with a target, rising; else -1
  int32_t* target_labels = nullptr;  // (count, M) the target there, else -100
  int64_t* rows = nullptr;           // (count, R) number of the row in the file, else -1
  // Places of a window in what is (count, T) above, and between positions of windows, w*stride + t:
  // at least the tokens of the fullest. 0: T.
  int64_t stride = 0;
  PairPlace* pairs = nullptr;  // (count, R) of each row, else all -1
};

// The last of n tokens that is not `padding`; 0 if all are.
int64_t last_token_of(const int32_t* tokens, int64_t n, int32_t padding);

// Of some windows in a row: those with rows, and the tokens of the fullest; at least 1 of each.
struct RowExtent {
  int64_t windows = 1, tokens = 1;
  int64_t places() const { return windows * tokens; }
};

// Used by one thread at a time: it remembers how the step that was asked for last is packed.
class RowDataset {
 public:
  // Throws usage for options out of range; data if the file has no row, a row is longer than T, or
  // holding out leaves no row to train on. Takes all memory it will ever need: at most 88 bytes
  // for each row of a step, and the longest row.
  RowDataset(RowFile file, RowDatasetOptions options);
  ~RowDataset();
  RowDataset(RowDataset&&) noexcept;
  RowDataset& operator=(RowDataset&&) noexcept;

  const RowFile& file() const;
  const RowDatasetOptions& options() const;  // with the defaults of 0 filled in
  int64_t train_rows() const;                // in one epoch
  int64_t eval_rows() const;   // held out; without eval_fraction all rows of the file, in its order
  int64_t eval_steps() const;  // ceil(eval_rows() / eval_batch): the last may have fewer rows

  // Windows of a training step, at least 1 and at most global_batch.
  int64_t windows(int64_t step);
  int64_t tokens(int64_t step);  // of its rows
  RowExtent extent(int64_t step, int64_t first_window, int64_t count);
  // Windows [first_window, first_window + count) of a step; those past windows(step) are empty:
  // tokens 0, one row of nothing, everything ignored. Takes no memory. Throws DataLost.
  void fill(int64_t step, int64_t first_window, int64_t count, const RowBlock& out);
  // The targets of a step, which its loss is the mean of: rows with a label where the file labels
  // rows, else tokens with a target. With token targets it reads the rows. May be 0.
  int64_t trained(int64_t step);

  // The same of step e of an evaluation; masks are the same each time. Throws internal past
  // eval_steps().
  int64_t eval_windows(int64_t e);
  RowExtent eval_extent(int64_t e, int64_t first_window, int64_t count);
  void fill_eval(int64_t e, int64_t first_window, int64_t count, const RowBlock& out);
  int64_t eval_trained(int64_t e);

  // The row of the file that sample k of the run, or row i of the evaluation, is.
  int64_t row_of(int64_t k) const;
  int64_t eval_row_of(int64_t i) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug
