// The picture of the step for a terminal.
#include <fmt/format.h>

#include <algorithm>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/report.h"
#include "tools/report/step_view.h"

namespace snug {
namespace {

constexpr int kRows = 7, kColumns = 64;
constexpr const char* kEighths[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

int64_t residents_of(const StepView& view, const StepColumn& column) {
  int64_t sum = 0;
  for (size_t b = 0; b < view.bands.size(); ++b)
    if (view.bands[b].resident) sum += column.bytes[b];
  return sum;
}

// At most `most` characters of a name: whole bytes of ASCII, a point for everything else.
std::string plain(std::string_view text, size_t most) {
  std::string out;
  for (const char c : text.substr(0, most)) out += c >= 0x20 && c < 0x7F ? c : '.';
  return out;
}

}  // namespace

std::string timeline_text(const Plan& plan) {
  const StepView view = make_step_view(plan, kColumns);
  if (view.segments.empty()) return "";
  int64_t highest = std::max<int64_t>(1, plan.engine_bytes);
  for (const StepColumn& c : view.columns) highest = std::max(highest, c.total);
  const int64_t base = view.crowding_residents();
  // Bytes to eighths of a row, rounded to the nearest, but what is there is seen.
  const auto eighths = [&](int64_t bytes) {
    const double e = 8.0 * kRows * static_cast<double>(bytes - base) /
                     static_cast<double>(std::max<int64_t>(1, highest - base));
    return std::clamp(static_cast<int>(e + 0.5), bytes > base ? 1 : 0, 8 * kRows);
  };
  std::string out;
  for (int row = kRows - 1; row >= 0; --row) {
    const int64_t edge = base + (highest - base) / kRows * (row + 1);
    out += fmt::format("{:>11} {}",
                       row == kRows - 1 ? human_bytes(highest)
                       : row % 2 == 0   ? human_bytes(edge)
                                        : "",
                       row % 2 == 0 ? "┤" : "│");
    for (const StepColumn& c : view.columns) {
      const int filled = eighths(c.total) - 8 * row;
      const bool resident = eighths(residents_of(view, c)) - 8 * row >= 4;
      out += filled >= 4 && resident ? "░" : kEighths[std::clamp(filled, 0, 8)];
    }
    out += "\n";
  }
  std::string axis, labels(static_cast<size_t>(kColumns), ' ');
  const auto column_of = [&](double x) {
    return std::clamp(static_cast<int>(x * kColumns), 0, kColumns - 1);
  };
  const int peak = column_of(view.x_of(view.peak));
  for (int c = 0; c < kColumns; ++c) {
    bool cut = false;
    for (const StepSegment& s : view.segments)
      cut = cut || (s.x.front() > 0 && c == column_of(s.x.front()));
    axis += c == peak ? "▲" : cut ? "┴" : "─";
  }
  for (const StepSegment& s : view.segments) {
    const int begin = column_of(s.x.front()), end = static_cast<int>(s.x.back() * kColumns);
    const auto room = static_cast<size_t>(std::max(0, end - begin - 1));
    const std::string label = plain(s.label, room);
    labels.replace(static_cast<size_t>(begin + 1), label.size(), label);
  }
  labels.erase(labels.find_last_not_of(' ') + 1);
  out += fmt::format("{:>11} └{}\n{:13}{}\n", base > 0 ? human_bytes(base) : "0", axis, "", labels);

  int64_t resident = 0, alive = 0;
  for (const HeldTensor& h : view.held(view.peak)) {
    alive += h.tensor->bytes;
    if (plan.schedule.at(h.program).resident) resident += h.tensor->bytes;
  }
  return out + fmt::format("{:13}░ resident {}  █ step {}  ▲ peak, in {}\n", "",
                           human_bytes(resident), human_bytes(alive - resident),
                           plain(view.program_of(view.peak).name.view(), 16));
}

}  // namespace snug
