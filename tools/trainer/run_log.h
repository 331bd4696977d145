// What a run says while it runs: metrics.jsonl, and lines for a person (one live line on a
// terminal, plain lines elsewhere). Buffers are made before training starts; writing allocates
// nothing that stays.
#pragma once

#include <cstdio>
#include <string>

#include "tools/report/report.h"

namespace snug {

struct StepMetrics {
  int64_t step = 0, total_steps = 0;  // total 0: unknown
  double loss = 0, learning_rate = 0, grad_norm = 0;
  double tokens_per_second = 0, step_seconds = 0, elapsed = 0;
  double epoch = 0;
  int64_t tokens_seen = 0;
  int64_t memory_bytes = 0;  // resident arena bytes
  double remaining = -1;     // seconds; -1: unknown
  // Seconds from the start of the process to this run's first step; -1: not its first line.
  double startup_seconds = -1;
};

class RunLog {
 public:
  // Opens output_dir/metrics.jsonl; on a resume lines beyond `keep_until_step` are cut first.
  RunLog(const std::string& output_dir, int64_t keep_until_step);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Values that are not finite are written as null.
  void step(const StepMetrics& m);
  void evaluation(int64_t step, double loss, double perplexity, double seconds, int64_t tokens);
  // A line for the person; a live line is finished first.
  void say(const std::string& line);
  // Between log lines, on a terminal only.
  void live(const StepMetrics& m);

 private:
  void line(const char* text);

  std::FILE* metrics_ = nullptr;
  bool terminal_ = false;
  bool live_open_ = false;
  std::string path_;
  char buffer_[4096];  // of metrics_
};

// What metrics.jsonl holds, for the report: metrics, evaluations and memory of the whole run, what
// was before a resume included. Of a long run some thousand lines, evenly spaced and with the last.
void read_metrics(const std::string& output_dir, ReportRun& report);

}  // namespace snug
