// What a run says while it runs: metrics.jsonl, metrics.csv and TensorBoard events where report_to
// asks for them, and lines for a person (one live line on a terminal, plain lines elsewhere).
// Buffers are made before training starts; writing allocates nothing that stays.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "layers/tasks/metrics.h"
#include "tools/checkpoint/aside.h"
#include "tools/trainer/event_file.h"
#include "tools/trainer/line_file.h"

namespace snug {

// Of report_to.
struct RunSinks {
  bool csv = false, tensorboard = false;
  bool loss_scaling = false;  // the run has a loss scale, which metrics.csv has columns for
};
RunSinks run_sinks(const std::vector<std::string>& report_to);
// The first line of metrics.csv, with its line break.
std::string csv_heading(bool loss_scaling);

struct StepMetrics {
  int64_t step = 0, total_steps = 0;  // total 0: unknown
  double loss = 0, learning_rate = 0, grad_norm = 0;
  double tokens_per_second = 0, step_seconds = 0, elapsed = 0;
  double epoch = 0;
  int64_t tokens_seen = 0;
  int64_t memory_bytes = 0;    // resident arena bytes
  double empty_share = -1;     // of the step's planned rows of tokens; -1: there are none
  double idle_share = -1;      // of those that it computed
  double loss_scale = 0;       // of the next step; 0: there is no loss scaling
  int64_t skipped_steps = -1;  // of the run; -1: none can be
  // Of a GPU, with all that others have there; -1: not told.
  int64_t gpu_used_bytes = -1;
  int gpu_utilisation = -1;  // percent
  double gpu_watts = -1;
  double remaining = -1;  // seconds; -1: unknown
  // Seconds from the start of the process to this run's first step; -1: not its first line.
  double startup_seconds = -1;
  double predicted_tokens_per_second = 0;  // of the plan; on that line too
  std::string_view leg = {};               // a JSON object of that process; on that line too
  MetricList metrics = {};                 // since the last line, of a task with some; of pairs
};

struct EvalMetrics {
  int64_t step = 0, tokens = 0;
  double loss = 0, perplexity = 0, seconds = 0, epoch = 0;  // of a task with metrics no perplexity
  MetricList metrics = {};
  const char* pairs = nullptr;  // what tokens then are, pairs or answers, and metrics theirs
};

// Seconds that a run still takes: `spent` ones went into its steps from `first` to `step`, of
// `total` (0: unknown), and at most `left` of max_time are left (-1: no such limit). -1: unknown.
double remaining_seconds(double spent, int64_t first, int64_t step, int64_t total, double left);

// A loss scale in few digits; powers of two, as most are, exactly.
std::string loss_scale_text(double scale);

class RunLog {
 public:
  // Opens output_dir/metrics.jsonl, metrics.csv and runs/events.out.tfevents.*; on a resume what
  // they hold beyond `keep_until_step` (-1: a new run) is cut first, so that they read as if
  // nothing had happened, and set `aside`, if given. A run that did not write one of them before
  // begins it there.
  RunLog(const std::string& output_dir, int64_t keep_until_step, RunSinks sinks,
         Aside* aside = nullptr);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Values that are not finite are written as null.
  void step(const StepMetrics& m);
  void evaluation(const EvalMetrics& m);
  // What the model wrote after a step, in UTF-8: to metrics.jsonl and as TensorBoard's text.
  void sample(int64_t step, std::string_view text);
  // A line for the person; a live line is finished first.
  void say(const std::string& line);
  // Between log lines, on a terminal only.
  void live(const StepMetrics& m);
  // Makes what was logged durable: before a checkpoint, which is not to know more than the log.
  void sync();
  // Writes what was logged so far to a new folder, also if the files of the old one were removed.
  // TensorBoard events are left out. Throws device.
  void recover(const std::string& output_dir);
  const std::string& metrics_path() const { return path_; }

 private:
  bool terminal_ = false;
  bool live_open_ = false;
  bool loss_scaling_ = false;
  std::string path_;
  std::unique_ptr<LineFile> metrics_, csv_;
  std::unique_ptr<EventFile> events_;
};

}  // namespace snug
