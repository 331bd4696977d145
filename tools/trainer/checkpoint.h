// Checkpoints: everything a run needs to go on with the same bits.
//
//   checkpoint-N/
//     model.safetensors      fp32 weights under Hugging Face names; with config.json and the
//     tokenizer
//                            the folder is a model folder like any other
//     optimizer.safetensors  states as <state>.<parameter>, fp32
//     snug_state.json        step, data position, sums of the logging window, pinned decisions
//     trainer_state.json     the log in the form of Hugging Face's Trainer; not read at a resume
//     COMPLETE               written last: without it the folder is a torn write and is not used
// The folder is built under a temporary name and renamed; one of the same step is exchanged for it,
// so that at no moment there is none.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "engine/io/safetensors.h"
#include "tools/trainer/loss_watch.h"
#include "tools/trainer/plan.h"

namespace snug {

// Where a run is. Everything here is the same after a resume.
struct RunPosition {
  int64_t step = 0;           // optimizer steps done
  int64_t updates = 0;        // of these, updates applied
  int64_t samples = 0;        // training samples consumed: the data position
  double elapsed = 0;         // seconds of training
  double window_loss = 0;     // sum of losses since the last log line
  int64_t window_tokens = 0;  // and their number
  int64_t window_steps = 0;
  double best_eval_loss = -1;  // -1: none yet
  int64_t best_eval_step = 0;
  int64_t evals_without_gain = 0;  // of early_stopping_patience
  LossWatch::State watch;
};

// What a checkpoint pins because it changes numbers.
struct Pinned {
  // Which kernel computes which products; empty in checkpoints from before there was a choice.
  std::vector<KernelChoice> kernels;
  std::string attention;  // Plan::attention
  int64_t seed = 0, global_batch = 0, T = 0, micro_batch = 0, head_rows = 0, threads = 0;
  std::string precision, optimizer, instruction_set, recompute;
  int64_t data_seed = 0, train_tokens = 0, train_samples = 0;
  std::string model;  // fingerprint of the spec: shapes and numerics
  std::string data;   // fingerprint of the tokens to train on
};

// Key and value of what may change at a resume, so that a change can be named.
using Hyperparameters = std::map<std::string, std::string>;

class CheckpointWriter {
 public:
  // Prepares headers, so that writing later allocates nothing that stays.
  CheckpointWriter(Session& session, std::string output_dir, int64_t keep);
  // Bytes on disk of one checkpoint.
  int64_t bytes() const;
  // Writes checkpoint-<step>; `extra` adds files (config, tokenizer) to the folder under
  // construction. Then removes the oldest of the complete ones beyond the limit, this one never.
  // Throws device on a full disk; the previous ones stay.
  std::string write(const RunPosition& position, const Pinned& pinned,
                    const Hyperparameters& hyperparameters,
                    const std::function<void(const std::string&)>& extra);

 private:
  Session& session_;
  std::string output_dir_;
  int64_t keep_;
  SafetensorsLayout model_layout_, optimizer_layout_;
};

struct Checkpoint {
  std::string folder;
  RunPosition position;
  Pinned pinned;
  Hyperparameters hyperparameters;
};

// The step in a name of the form checkpoint-<digits>; nothing for other names.
std::optional<int64_t> checkpoint_step(const std::string& name);

// The newest complete checkpoint of a run, or nothing. Torn ones are named in `skipped`.
std::optional<std::string> latest_checkpoint(const std::string& output_dir, std::string* skipped);
// Reads snug_state.json. Throws data if it is torn, foreign or of a newer version.
Checkpoint read_checkpoint(const std::string& folder);
// Loads weights and optimizer state into an opened session.
void load_checkpoint(Session& session, const Checkpoint& checkpoint);

}  // namespace snug
