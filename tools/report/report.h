// The report: one HTML file that shows where every byte of a run goes, drawn from the plan before
// the run and overlaid with what was measured after it; and the same picture in ten lines of text.
//
// The page needs nothing but itself: SVG and text written here, a little CSS and JavaScript inside,
// and a content security policy that forbids any request. It follows the reader's light or dark
// preference, works without JavaScript (tables hold the numbers), and stays under 2 MB: tensors too
// small to see are merged, curves are thinned to what a screen can show.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/trainer/plan.h"

namespace snug {

// One line of the training log. Values that are not finite leave a gap in their curve.
struct ReportMetric {
  int64_t step = 0;
  double loss = 0, learning_rate = 0, grad_norm = 0, tokens_per_second = 0;
  double seconds = 0;  // since the start of training
};

struct ReportEval {
  int64_t step = 0;
  double loss = 0;
};

// What is known of the run. Default: nothing, the page is the plan's alone.
struct ReportRun {
  std::vector<ReportMetric> metrics;
  std::vector<ReportEval> evals;
  int64_t measured_engine_bytes = -1;    // resident bytes of the arena; -1: not measured
  int64_t measured_host_bytes = -1;      // the same of the host arena
  int64_t allocations_after_start = -1;  // -1: not counted
  int64_t measured_runtime_bytes = -1;   // -1: not measured
  std::vector<std::pair<double, int64_t>> memory_samples;  // seconds, resident arena bytes
  std::string title, sample_text;                          // any bytes: both are escaped
  bool finished = false;                                   // the run reached its last step
};

// The page, a whole HTML document in UTF-8. The schedule of `plan` should be packed; without
// offsets the address map says so. Never fails on the content of plan or run.
std::string report_html(const Plan& plan, const ReportRun& run);

// Memory over one step as ten lines of at most 80 columns, UTF-8, ended by newlines: height is
// bytes, x the position in the schedule weighted by work. Empty for a schedule without programs.
std::string timeline_text(const Plan& plan);

}  // namespace snug
