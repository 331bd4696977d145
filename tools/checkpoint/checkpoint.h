// Checkpoints: everything a run needs to go on with the same bits.
//
//   checkpoint-N/
//     model.safetensors      fp32 weights under Hugging Face names; with config.json and the
//                            tokenizer the folder is a model folder like any other. Of a run with
//                            adapters adapter_model.safetensors, and it is a PEFT folder: the frozen
//                            base is not in it, and is named by its fingerprint
//     optimizer.safetensors  states as <state>.<parameter>, as they rest (saved_state.h), parameter by
//                            parameter
//     snug_state.json        step, data position, sums of the logging window, pinned decisions
//     trainer_state.json     the log in the form of Hugging Face's Trainer; not read at a resume
//     of ranks that share what they keep, in place of the two large files: pieces of each, model-rank-R
//                            and optimizer-rank-R, and what is where (engine/io/safetensors_pieces.h);
//                            any number of ranks and any stage goes on from them, and whoever asks for
//                            one of the files gets it
//     COMPLETE               written last: every file's checksum (checkpoint_seal.h). Without it
//                            the folder is a torn write and is not used
// The folder is built under a temporary name and renamed; one of the same step is exchanged for it,
// so that at no moment there is none. checkpoint_writer.h writes them.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/memory/step_state.h"
#include "layers/tasks/preference.h"
#include "tools/checkpoint/loss_watch.h"
#include "tools/planner/plan.h"

namespace snug {

// Where a run is. Everything here is the same after a resume.
struct RunPosition {
  int64_t step = 0;           // optimizer steps done
  int64_t updates = 0;        // of these, updates applied
  int64_t untrained = 0;      // of the others, those of samples without a target
  int64_t samples = 0;        // training samples consumed: the data position
  double elapsed = 0;         // seconds of training
  double window_loss = 0;     // sum of losses since the last log line
  int64_t window_tokens = 0;  // and their number
  int64_t window_steps = 0;
  PreferenceSums window_pairs;  // of task: dpo and reward
  double start_eval_loss = -1;  // before the first step; -1: not evaluated
  double best_eval_loss = -1;   // of the steps; -1: none yet
  int64_t best_eval_step = 0;
  int64_t evals_without_gain = 0;  // of early_stopping_patience
  // The best checkpoint, which no limit removes; -1: none yet.
  double best_saved_loss = -1;
  int64_t best_saved_step = -1;
  // What the best is by: metric_for_best_model (a perplexity orders as its loss: eval_loss), whether
  // the greater is the better, and its values where the losses above are.
  std::string best_by = "eval_loss";
  bool greater_is_better = false;
  double start_metric = -1, best_metric = -1, best_saved_metric = -1;
  // The loss scale of the next step and the good steps since it changed (optim/loss_scaling.h).
  // Steps that were skipped, for either reason: step - updates.
  float loss_scale = 1;
  int64_t growth_tracker = 0;
  bool evaluation_due = false;  // the one of this step was broken off: a resume begins with it
  LossWatch::State watch;
  // Of an update one step late that is pending (Session::late_step): the numbers of its step.
  std::optional<StepState> late = {};
};

// What a checkpoint pins because it changes numbers.
struct Pinned {
  // Which kernel computes which products; empty in checkpoints from before there was a choice.
  std::vector<KernelChoice> kernels;
  std::string attention;   // Plan::attention
  ComputesOn computes_on;  // of a run on a GPU
  // Whether its algorithms were to be measured, which is not to say that there were any to measure.
  bool matmul_autotune = false;
  int64_t seed = 0, global_batch = 0, T = 0, threads = 0;
  Decisions decisions;  // of them those that a resume holds to, or is told of (decision_table.h)
  std::string precision, optimizer, instruction_set;
  double init_scale = 0;  // of a run with dynamic loss scaling, else 0
  int64_t data_seed = 0, train_tokens = 0, train_samples = 0;
  bool packing_boundaries = false;
  std::string model;   // fingerprint of the spec: shapes and numerics
  std::string frozen;  // fingerprint of the names that are frozen; empty: none is
  // Of a run with adapters: peft_text(), and weights_fingerprint() of the base.
  std::string adapters, base;
  std::string data;  // fingerprint of the tokens to train on
};

// Key and value of what may change at a resume, so that a change can be named.
using Hyperparameters = std::map<std::string, std::string>;

struct Checkpoint {
  std::string folder;
  RunPosition position;
  Pinned pinned;
  Hyperparameters hyperparameters;
};

inline constexpr const char* kCheckpointPrefix = "checkpoint-";
inline constexpr const char* kStatesFile = "optimizer.safetensors";
// Of a run's folder: log probabilities of its pairs by the weights that it began with.
inline constexpr const char* kReferenceFile = "reference_logps.safetensors";
// The step in a name of the form checkpoint-<digits>; nothing for other names.
std::optional<int64_t> checkpoint_step(const std::string& name);
// Steps of the folders of that form, ascending.
std::vector<int64_t> checkpoint_steps(const std::string& output_dir);

// The newest complete checkpoint of a run, or nothing; its bytes are not looked at.
std::optional<std::string> latest_checkpoint(const std::string& output_dir);

// The newest one to go on from, and what was passed over.
struct FoundCheckpoint {
  std::string folder;   // empty: there is none
  std::string torn;     // folders that were not written to their end, joined with commas
  std::string damaged;  // a line for each that is not as it was written
  std::vector<std::string> damaged_folders;
};
// Reads them whole. Throws data if the newest complete one is of another version or program.
FoundCheckpoint find_intact_checkpoint(const std::string& output_dir);

// Throws data naming the first file that is not as it was written.
void check_checkpoint_bytes(const std::string& folder);
// Reads snug_state.json. Throws data if it is torn, foreign, of another version or, unless its
// bytes were `checked` before, not as it was written.
Checkpoint read_checkpoint(const std::string& folder, bool checked = false);
// Loads weights and optimizer state into an opened session; with adapters those of the folder `base`
// before.
void load_checkpoint(Session& session, const Checkpoint& checkpoint, const std::string& base = "");

// The weights alone, of what a run saves.
void load_checkpoint_weights(Session& session, const std::string& folder);

// snug_state.json.
nlohmann::json checkpoint_state_json(const RunPosition& position, const Pinned& pinned,
                                     const Hyperparameters& hyperparameters);
// The tensor of a parameter's state in optimizer.safetensors.
std::string checkpoint_state_name(const Name& state, const ParamInfo& param);

}  // namespace snug
