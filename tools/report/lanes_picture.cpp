// Lanes: when the streams of a step work.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tools/report/markup.h"
#include "tools/report/pictures.h"

namespace snug {
namespace {

constexpr int kLane = 26;
constexpr double kLaneVisible = 0.4;  // units of the picture; neighbours nearer than this are one

struct Run {
  double from = 0, to = 0, seconds = 0;
  int64_t bytes = 0, ops = 0;
  std::string first, last;
};

// Ops of a stream as stretches without a gap that could be seen; a stretch of compute ends with its
// program.
std::vector<Run> runs_of(const StepView& view, int stream, int (*stream_of)(const OpRecord&)) {
  std::vector<Run> runs;
  for (const StepSegment& s : view.segments) {
    const Program& p = view.schedule->at(s.program);
    bool open = false;
    for (size_t k = 0; k < p.ops.size(); ++k) {
      if (stream_of(p.ops[k]) != stream) continue;
      const double from = s.x_at(s.spans[k].begin) * Plot::kWidth;
      const double to = s.x_at(s.spans[k].end) * Plot::kWidth;
      if (!open || from > runs.back().to + kLaneVisible)
        runs.push_back({from, to, 0, 0, 0, op_label(p.ops[k]), ""});
      open = true;
      Run& run = runs.back();
      run.to = std::max(run.to, to);
      run.seconds += s.spans[k].end - s.spans[k].begin;
      run.bytes += p.ops[k].bytes;
      run.last = op_label(p.ops[k]);
      ++run.ops;
    }
  }
  return runs;
}

}  // namespace

std::string lanes_picture(const StepView& view, int (*stream_of)(const OpRecord&)) {
  std::map<int, int64_t> ops;
  for (const StepSegment& s : view.segments)
    for (const OpRecord& op : view.schedule->at(s.program).ops) ++ops[stream_of(op)];
  if (ops.empty() || (ops.size() == 1 && ops.begin()->first == 0)) return "";
  const int height = kLane * static_cast<int>(ops.size());
  Plot plot(height, fmt::format("{} streams at work over one step.", ops.size()));
  // Weights are no times: their share of the step is all they say.
  const bool timed = view.source != StepTimes::Source::weights;
  double step = 0;
  for (const StepSegment& s : view.segments) step += s.start.back();
  std::string table;
  int lane = 0;
  for (const auto& [stream, count] : ops) {
    const double y = lane * kLane + 4;
    plot.y_tick(y + kLane / 2.0 - 4, lane_name(stream));
    double busy = 0;
    int64_t bytes = 0;
    for (const Run& run : runs_of(view, stream, stream_of)) {
      busy += run.seconds;
      bytes += run.bytes;
      plot.shape(fmt::format(
          "<rect class=\"lane{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}: {}{}\n"
          "{} ops, {}{} bytes</title></rect>\n",
          std::min(stream, 3), coordinate(run.from), coordinate(y),
          coordinate(std::max(kLaneVisible, run.to - run.from)), kLane - 8, lane_name(stream),
          escape_html(run.first), run.ops > 1 ? " to " + escape_html(run.last) : "", run.ops,
          timed ? short_seconds(run.seconds) + ", " : "", grouped(run.bytes)));
    }
    table += fmt::format(
        "<tr><th scope=\"row\">{}</th><td class=\"num\">{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{}</td></tr>\n",
        lane_name(stream), count,
        timed ? short_seconds(busy) : fmt::format("{:.1f} %", step > 0 ? 100 * busy / step : 0),
        data_bytes(bytes));
    ++lane;
  }
  draw_segments(plot, view, height);
  plot.shape(cursor_line(height));
  plot.x_title(axis_title(view));
  return "<h2>Streams</h2>\n<p class=\"sub\">When each stream works: arithmetic, and copies "
         "between the arenas of device and host, a disk below them, what ranks exchange; each "
         "program once.</p>\n" +
         plot.html("lanes") +
         "<div class=\"scroll\"><table><thead><tr><th scope=\"col\">stream</th><th scope=\"col\" "
         "class=\"num\">ops</th><th scope=\"col\" class=\"num\">busy</th><th scope=\"col\" "
         "class=\"num\">bytes</th></tr></thead><tbody>\n" +
         table + "</tbody></table></div>\n";
}

}  // namespace snug
