// The rows of a run: what encoders are trained and evaluated on, and causal models where the data is
// conversations (task: sft), pairs (task: dpo, reward) or tokens already (engine/data/row_*).
// They are read before the model is made, since their labels say how many outputs it has.
#pragma once

#include <functional>
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
#include "tools/setup/token_cache.h"

namespace snug {

// What rows are read for.
struct RowUse {
  // False: eval_data alone is read, and windows are as long as its rows need, at most T.
  bool train = true;
  bool labels = true;      // false: answers are asked for (fill_places)
  FrontTokens front = {};  // of RowOptions
  std::function<void(const RowRecord& record, bool made)> seen = nullptr;  // of RowOptions
  PrepareRoom room = {};  // longer records and larger zstd windows are an Error of code data
};

class RowData {
 public:
  // Reads train_data and eval_data. `spec` has the head; its labels are those that are asked for, if
  // `known`, and become those of the data. T: tokens of a row, and of a window, which of pairs is twice as
  // long, and longer by use.front.count; G: rows of a step.
  // Throws usage and data, of rows that the spec cannot take too: other numbers of labels, token
  // types that it does not have; and of rows to evaluate that have no target.
  RowData(const RunConfig& config, const std::optional<Tokenizer>& tokenizer, ModelSpec& spec,
          bool known, int64_t T, int64_t G, const RowUse& use = {});

  // Tokenised rows that fit no label, for people; lines of what was read and assumed.
  const std::vector<std::string>& notes() const { return notes_; }
  const std::string& text() const { return text_; }

  int64_t T() const { return T_; }                              // tokens of a window
  int64_t rows_per_window() const { return rows_per_window_; }  // 0: causal_lm, as Decisions
  PairDecision pairs() const { return pairs_; }
  // The most of the first steps of an epoch: fewer cost memory and no time.
  int64_t windows_per_step() const { return windows_; }
  double mean_length() const { return mean_length_; }
  int64_t train_rows() const { return train_ ? train_->train_rows() : 0; }
  int64_t eval_rows() const { return eval_rows_; }
  std::string fingerprint() const;
  // Of all rows that have a reference: those that are evaluated too.
  std::string reference_fingerprint() const;

  // Of optimizer step `step`.
  int64_t windows(int64_t step) { return train_->windows(step); }
  int64_t tokens(int64_t step) { return train_->tokens(step); }
  int64_t trained(int64_t step) { return train_->trained(step); }
  // What the session runs of the micro-batch from that window on, behind the last a window of
  // nothing; and its batch, with Session::use() of it.
  Session::Extent extent(int64_t step, int64_t first_window, const Session& session);
  // Of a loss that compares: what the rows of the step, or of the evaluation, are compared with from now
  // on, by the session's evaluation of their prompts with the answers of others. Of others nothing. Leaves
  // the sums of the window as they are.
  void compare(bool evaluation, int64_t step, Session& session);
  void fill(int64_t step, int64_t first_window, Session& session);
  // Throws data if no step of the first `steps` (0: of an epoch) has a target.
  void check_trained(int64_t steps);

  // Of pairs whose reference is cached, (rows, 2) log probabilities of each file of rows: what the session's
  // evaluation says of all, which it then has with every pair that is filled in. Takes all memory that fills
  // need.
  struct ReferenceFile {
    const char* name;
    int64_t rows;
  };
  std::vector<ReferenceFile> reference_files();
  std::vector<std::vector<float>> compute_reference(Session& session);
  void set_reference(std::vector<std::vector<float>> of_files, const Session& session);

  // Of evaluation step e, rows [e G, (e + 1) G).
  int64_t eval_steps() { return evaluated().eval_steps(); }
  int64_t eval_windows(int64_t e) { return evaluated().eval_windows(e); }
  void fill_eval(int64_t e, int64_t first_window, Session& session);

  // Windows of a step of training, or of the evaluation, into a block of one's own.
  void show(bool evaluation, int64_t step, int64_t first_window, int64_t count,
            const RowBlock& out);
  const RowForm& form(bool evaluation) { return of(evaluation).file().form(); }

  // What a row of the head answers for: a place of a row of the data, as RowOptions::places has it,
  // 0 for a sequence; row -1: nothing.
  struct Place {
    int64_t row = -1, place = 0;
  };
  // As fill_eval of rows without labels: nothing has a target. Valid until the next call.
  const std::vector<Place>& fill_places(int64_t e, int64_t first_window, Session& session);

 private:
  struct Chats;
  RowDataset& of(bool evaluation) { return evaluation ? evaluated() : *train_; }
  RowDataset& evaluated() { return eval_ ? *eval_ : *train_; }
  RowDataset& others_of(bool evaluation) {
    return evaluation && eval_others_ ? *eval_others_ : *train_others_;
  }
  // Evaluates the windows of a step; `each` is told the place and the row of every pair.
  template <class F>
  void evaluate_pairs(RowDataset& rows, bool evaluation, int64_t step,
                      const std::vector<float>* reference, Session& session, F&& each);
  int64_t most_windows();
  int64_t use_for_eval(int64_t e, int64_t first_window, Session& session);
  void check_evaluated(const RunConfig& config, const char* key);
  RowBlock block(Session& session);
  void place_reference(const std::vector<float>* from, int64_t count, Session& session) const;
  const std::vector<float>* reference_of(bool evaluation, bool others) const;
  void place_compared(int64_t count, Session& session) const;
  void fill_rewards(bool evaluation, int64_t step, int64_t first_window, int64_t count,
                    const RowBlock& block, Session& session);
  RowFile read(const std::vector<std::string>& given, const char* key, const RunConfig& config,
               const std::optional<Tokenizer>& tokenizer, RowOptions& options, ModelSpec& spec,
               const PrepareRoom& room);
  RowFile read_others(const std::vector<std::string>& given, const RunConfig& config,
                      const std::optional<Tokenizer>& tokenizer, RowOptions options,
                      const PrepareRoom& room);

  ScratchFolder folder_;
  HeadKind head_;
  Problem problem_;
  std::optional<RowDataset> train_, eval_;
  std::optional<RowDataset> train_others_,
      eval_others_;         // of a loss that compares: mismatched rows
  float compared_ = 0;      // with what, of the step that is filled
  Chats* chats_ = nullptr;  // while rows are read
  std::vector<std::string> notes_;
  std::string text_;
  PairDecision pairs_;
  int32_t padding_ = -1;
  std::vector<PairPlace> pair_places_;  // (R), of rewards, with their margins
  std::vector<float> margins_;
  int64_t T_ = 0, rows_per_window_ = 0, windows_ = 0, eval_rows_ = 0;
  double mean_length_ = 0;
  std::vector<Place> places_;
  std::vector<std::vector<float>> reference_;
  bool known_reference_ = false;           // computed or read
  std::vector<int64_t> row_numbers_;       // (B,R) of fill_places, and of pairs with a reference
  std::vector<int32_t> first_, place_of_;  // (B,R), (B,M)
};

// Whether the run's data is rows of tokens, which a causal model then learns as rows: the first
// record of train_data, or of eval_data, has "input_ids", and text_column was not set. Data that
// cannot be read is none.
bool gives_token_rows(const RunConfig& config);

// Whether the data is pairs of answers, and a word of the command's for the task.
inline bool learns_pairs(std::string_view task) {
  return task == "dpo" || task == "reward";
}
// Of task: dpo and reward; per_window as if each window had one.
PairDecision pair_decision(const RunConfig& config);
// A window has both answers of a pair, so it may be of the lengths that longrope scales otherwise where
// neither of them is. Throws unsupported.
void check_pair_length(const ModelSpec& spec, int64_t max_length, const RunConfig& config);

// Targets a window of T tokens may have under masking: the expected number and six deviations.
int64_t masked_rows(int64_t T, double probability);

// What is to be said of how many of `rows` answers of kto are desirable, beside their weights; empty:
// nothing. The paper (arXiv:2402.01306, equation 8) has them weigh 1 to 4/3 of the others.
std::string balance_note(int64_t desirable, int64_t rows, double desirable_weight,
                         double undesirable_weight);

}  // namespace snug
