// trainer_state.json in the form of Hugging Face's Trainer: what tools that plot or compare runs
// read. It is made of metrics.jsonl, line by line: memory does not grow with the run. Nothing here
// is needed to go on from a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace snug {

struct TrainerStateInfo {
  int64_t step = 0, max_steps = 0;  // max 0: the clock bounds the run
  double epoch = 0, num_train_epochs = 0;
  int64_t logging_steps = 0, eval_steps = 0, save_steps = 0, train_batch_size = 0;
  int64_t tokens_seen = 0;
  std::optional<double> best_metric = {};
  int64_t best_step = 0;
  std::string best_checkpoint = {};  // empty: none
};

// Writes `path` with the lines of `metrics_path` up to info.step as log_history; through
// AtomicFile.
void write_trainer_state(const std::string& path, const std::string& metrics_path,
                         const TrainerStateInfo& info);

}  // namespace snug
