// One training run: what `train` (trainer.h) keeps while it goes. The loop is in trainer.cpp, what
// it finds and takes over in train_start.cpp, what it writes and how it ends in train_files.cpp,
// which weights are the best in best_model.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/token_file.h"
#include "layers/tasks/metrics.h"
#include "optim/schedule.h"
#include "tools/checkpoint/checkpoint_writer.h"
#include "tools/checkpoint/loss_watch.h"
#include "tools/checkpoint/output_lock.h"
#include "tools/infer/generator.h"
#include "tools/report/report.h"
#include "tools/session/gpu_memory.h"
#include "tools/setup/row_data.h"
#include "tools/setup/run_data.h"
#include "tools/setup/setup.h"
#include "tools/trainer/run_log.h"
#include "tools/trainer/run_ranks.h"
#include "tools/trainer/start_clock.h"
#include "tools/trainer/step_recorder.h"

namespace snug {

class TrainRun {
 public:
  // `ranks`: of several; null: one.
  TrainRun(const RunConfig& config, RunRanks* ranks)
      : ranks_(ranks),
        setup_(make_setup(config, false, ranks ? ranks->share_machine() : RankRoom())),
        lead_dir_(config.output_dir) {
    clock_.lap("setup");
  }
  int run();

 private:
  int steps();
  bool leads() const { return ranks_ == nullptr || ranks_->leads(); }
  // Of several ranks: all are here.
  void meet(const char* what) {
    if (ranks_) ranks_->meet(what);
  }
  void agree_on_request();
  void follow_resume();
  void make_own_folder();
  void read_data(const std::string& new_tokens);
  // What rank 0 decides of the step to come: whether it is the last, and the schedule's clock.
  void agree();
  bool stopping() const;
  bool due(int64_t steps) const;
  void check_output_dir();
  void check_new_folder();
  std::string again() const;
  void keep_own_tokens();
  void take_over();
  PrepareRoom prepare_room() const;
  Pinned pinned() const;
  void reserve();
  // Bytes of the process now that are in neither arena; on a GPU of the process there, and -1 where
  // NVML does not tell them.
  int64_t runtime_now() const;
  void prepare_gpu();
  void note_free();
  void set_rate();
  // Tokens of a sample that are no virtual ones.
  int64_t text_length() const { return plan_.decisions.T - setup_.model->front().count; }
  int64_t targets_of_step() const;
  void skip_step();
  // What left a step without a target, and where that was said.
  const char* untrained_key() const;
  std::string untrained_source() const;
  void tell_untrained() const;
  void apply_late();
  void prepare();
  void start_log();
  // Of pairs whose reference is cached: computed, or of a run that goes on read.
  void learn_reference();
  void micro_steps();
  void micro_steps_of_rows(int64_t step);
  double tokens_of(int64_t samples) const;
  bool optimizer_step(int64_t targets);
  bool step_skipped();
  void watch_allocations();
  std::string bad_place(const StepState& state) const;
  void log_step(double step_seconds);
  bool evaluate();
  void measure();
  std::string best_by() const;
  bool greater_is_better() const;
  bool better(double a, double b) const;
  std::optional<double> best_of_all() const;
  std::string metric_words() const;
  void tell_better_start() const;
  bool sample();
  bool finish_step(double step_seconds);
  bool best_so_far() const;
  std::string checkpoint_folder(int64_t step) const;
  void save();
  void tell_saved(const std::optional<CheckpointWriter::Saved>& saved);
  std::string save_and_wait();
  bool load_best();
  bool rescue();
  void write_final();
  void write_config() const;
  std::string resume_command() const;
  int64_t own_gpu_runtime() const;
  void write_memory_json(bool finished, const std::string& failure = "");
  void write_report(bool finished);
  void refresh_report();
  std::string leg_text() const;
  void say_disk() const;  // what the file of states saw
  void write_unfinished(const std::string& failure = "");
  void require_own_output() const;
  std::optional<std::string> own_latest() const;
  int stopped();
  int training_failed();
  int nothing_learned();
  int data_lost(const DataLost& error);
  int broken_off(const Error& error);
  bool watch();
  bool stopped_early() const;
  double epoch() const;
  void write_state(const std::string& folder) const;
  void add_model_files(const std::string& folder, DType dtype) const;
  void check_base();
  void check_tokenizer() const;
  bool finished() const;
  const RunConfig& config() const { return setup_.config; }

  OutputLock lock_;  // first, so that it is let go of last
  RunRanks* ranks_;
  StartClock clock_;
  RunSetup setup_;
  std::string lead_dir_;  // the run's output_dir; that of a rank that follows is below it
  RunData data_;
  Plan plan_;
  std::optional<Checkpoint> resumed_;
  bool fork_ = false;        // it goes on from a checkpoint of another folder
  bool own_tokens_ = false;  // it reads the tokens that output_dir holds from before
  std::unique_ptr<Session> session_;
  int graphs_ = 0;  // that its allocations are known of
  std::unique_ptr<CheckpointWriter> checkpoints_;
  std::unique_ptr<SafetensorsLayout> final_layout_;
  std::unique_ptr<LearningRateSchedule> schedule_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<StepRecorder> recorder_;
  std::vector<int32_t> sample_prompt_;
  std::string sample_text_, data_fingerprint_;
  // What ended the run, of which there is one: a step whose loss or gradient is not finite, weights
  // that give no finite validation loss or logits, loss_watchdog: stop.
  std::string not_finite_, bad_weights_, diverging_;
  // The last step: it changed no weight; nothing of it was run, since it had no target.
  bool skipped_ = false, untrained_ = false;
  LossWatch watch_;
  PreferenceSums preferences_;  // of the step
  RunPosition at_;
  std::optional<Metrics> metrics_;  // of a task that has some
  ReportRun report_;                // what the plan predicts
  double report_seconds_ = 0;       // that pages took while the run goes
  std::string leg_;
  double started_ = 0, startup_ = -1;
  // Of this process's steps after the first, for the comparison with the plan.
  double timed_seconds_ = 0;
  int64_t timed_steps_ = -1;
  // Of this process's steps: rows of tokens that were computed, and tokens in them; the last step's
  // share without one.
  int64_t computed_rows_ = 0, filled_rows_ = 0;
  double empty_share_ = -1, idle_share_ = -1;
  int64_t total_ = 0, runtime_measured_ = 0;
  std::string pci_;  // on a GPU: its bus id
  GpuBytes gpu_bytes_;
  int64_t own_steps_ = 0;
  // What the last evaluation said; the step whose checkpoint was begun last.
  double evaluated_loss_ = 0, evaluated_metric_ = 0;
  int64_t evaluated_step_ = -1, saved_step_ = -1;
  std::vector<std::string> damaged_;  // checkpoints a resume passed over, to be kept aside
  bool weights_replaced_ = false;     // by the best ones: there is no state to save any more
  bool save_ = false;                 // a signal asked for a checkpoint
  bool stop_ = false;                 // of several ranks: one of them got a signal
  double lead_elapsed_ = 0;           // and what rank 0's clock says
  bool last_ = false;                 // decided once a step, so that all parts of the step agree
};

}  // namespace snug
