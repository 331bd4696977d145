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
#include <string_view>
#include <utility>
#include <vector>

#include "tools/planner/plan.h"
#include "tools/report/op_time.h"

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

// A process of the run: one that began it, or went on from a checkpoint. Each has a plan of its own.
struct ReportLeg {
  int64_t from_step = 0, step = 0;  // the step it went on from; its first logged one
  double seconds = 0;               // since the start of training, at that line
  int64_t engine_bytes = -1;        // of its plan; -1: the log does not say
  int64_t budget = 0;               // 0: none was set
  double predicted_tokens_per_second = 0;
  std::string machine = {}, when = {}, sentence = {};  // what it ran on; UTC; its plan in words
  int64_t samples = 0;  // logged lines with its memory; 0: not counted
  bool logged = true;   // false: it ended before its first line
};

// Text that the model wrote after a step.
struct ReportSample {
  int64_t step = 0;
  std::string text;
};

// One budget of the ladder, and the plan that is fastest in it.
struct ReportRung {
  int64_t budget = 0, engine_bytes = 0, micro_batch = 0;
  std::string recompute;
  double tokens_per_second = 0;  // predicted
  std::string sentence;          // what it does, in words
  bool current = false;          // the plan of this page
};

// What is known of the run. Default: nothing, the page is the plan's alone.
struct ReportRun {
  std::vector<ReportMetric> metrics;
  std::vector<ReportEval> evals;
  int64_t measured_engine_bytes = -1;    // resident bytes of the arena; -1: not measured
  int64_t measured_host_bytes = -1;      // the same of the host arena
  int64_t disk_bytes = -1;               // that the file of states has on the disk
  int64_t allocations_after_start = -1;  // -1: not counted
  int64_t measured_runtime_bytes = -1;   // -1: not measured
  std::vector<std::pair<double, int64_t>> memory_samples;  // seconds, resident arena bytes
  std::string title;                                       // any bytes, as all text: escaped
  std::vector<ReportLeg> legs;                             // ascending; empty: the plan's alone
  std::vector<ReportSample> samples;                       // steps ascending
  std::string model_text;                                  // of plan.json, where there is no plan
  std::string written;                                     // UTC of the last logged line
  std::string best_by = "eval_loss";                       // what the best step is the best by
  int64_t best_step = -1;                                  // -1: nothing was evaluated
  double best_value = 0;                                   // of best_by
  int64_t final_step = -1;                                 // whose weights final/ holds; -1: none
  int64_t total_steps = 0;                                 // 0: not known
  bool finished = false;                                   // the run reached its last step
  std::string failure = {};  // why its last leg ended before that: of one that diverged, in words
  StepTimes op_times;        // of a measured step, if there is one
  std::vector<ReportRung> ladder;  // budgets ascending; empty: not known
  std::vector<std::string> notes;  // what could not be read; not on the page
};

// What every page begins with and hardly another file.
inline constexpr std::string_view kReportMark = "<meta name=\"generator\" content=\"Snug\"/>";

// The page, a whole HTML document in UTF-8: what was trained on what machine when, loss, samples,
// then memory, then the ladder. The schedule of `plan` should be packed; without offsets the
// address map says so. Never fails on the content of plan or run.
std::string report_html(const Plan& plan, const ReportRun& run);
// The page of before with its part on learning drawn anew from `run`; what was drawn from the plan
// stays. Empty if `page` is none of report_html.
std::string renewed_report(const std::string& page, const ReportRun& run);

// Memory over one step as ten lines of at most 80 columns, ended by newlines: height is bytes, x
// the position in the schedule weighted by work. Empty for a schedule without programs. `columns`: of
// the terminal, if that has fewer; 0: not known.
enum class Glyphs : uint8_t { blocks, ascii };  // UTF-8, or bytes that every terminal has
std::string timeline_text(const Plan& plan, Glyphs glyphs = Glyphs::blocks, int columns = 0);
// What the environment says of the terminal: blocks where LC_ALL, LC_CTYPE or LANG, the first that
// is set, names UTF-8 and TERM is not dumb. There is no colour, so NO_COLOR changes nothing.
Glyphs terminal_glyphs();

}  // namespace snug
