// The picture of the step for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/report.h"
#include "tools/report/step_view.h"

namespace snug {
namespace {

constexpr int kRows = 7, kMostColumns = 64, kLabels = 13;
// One column each. ASCII has two heights of a row, as a line printer had.
struct Signs {
  const char* eighths[9];
  const char *resident, *tick, *bar, *corner, *axis, *cut, *peak;
};
constexpr Signs kBlocks = {
    {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}, "░", "┤", "│", "└", "─", "┴", "▲"};
constexpr Signs kAscii = {
    {" ", "_", ".", ".", ".", ":", ":", "#", "#"}, "=", "+", "|", "+", "-", "+", "^"};

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

Glyphs terminal_glyphs() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  if (value("TERM") == "dumb") return Glyphs::ascii;
  std::string locale = value("LC_ALL");
  if (locale.empty()) locale = value("LC_CTYPE");
  if (locale.empty()) locale = value("LANG");
  std::transform(locale.begin(), locale.end(), locale.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool utf8 =
      locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  return utf8 ? Glyphs::blocks : Glyphs::ascii;
}

std::string timeline_text(const Plan& plan, Glyphs glyphs, int columns) {
  const int wide = columns > 0 ? std::clamp(columns - kLabels - 1, 8, kMostColumns) : kMostColumns;
  const Signs& signs = glyphs == Glyphs::ascii ? kAscii : kBlocks;
  const StepView view = make_step_view(plan, wide);
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
                       row % 2 == 0 ? signs.tick : signs.bar);
    for (const StepColumn& c : view.columns) {
      const int filled = eighths(c.total) - 8 * row;
      const bool resident = eighths(residents_of(view, c)) - 8 * row >= 4;
      out += filled >= 4 && resident ? signs.resident : signs.eighths[std::clamp(filled, 0, 8)];
    }
    out += "\n";
  }
  std::string axis, labels(static_cast<size_t>(wide), ' ');
  const auto column_of = [&](double x) {
    return std::clamp(static_cast<int>(x * wide), 0, wide - 1);
  };
  const int peak = column_of(view.x_of(view.peak));
  for (int c = 0; c < wide; ++c) {
    bool cut = false;
    for (const StepSegment& s : view.segments)
      cut = cut || (s.x.front() > 0 && c == column_of(s.x.front()));
    axis += c == peak ? signs.peak : cut ? signs.cut : signs.axis;
  }
  for (const StepSegment& s : view.segments) {
    const int begin = column_of(s.x.front()), end = static_cast<int>(s.x.back() * wide);
    const auto room = static_cast<size_t>(std::max(0, end - begin - 1));
    const std::string label = plain(s.label, room);
    labels.replace(static_cast<size_t>(begin + 1), label.size(), label);
  }
  labels.erase(labels.find_last_not_of(' ') + 1);
  out += fmt::format("{:>11} {}{}\n{:13}{}\n", base > 0 ? human_bytes(base) : "0", signs.corner,
                     axis, "", labels);

  int64_t resident = 0, alive = 0;
  for (const HeldTensor& h : view.held(view.peak)) {
    alive += h.tensor->bytes;
    if (plan.schedule.at(h.program).resident) resident += h.tensor->bytes;
  }
  const bool narrow = columns > 0 && columns < kLabels + kMostColumns;  // then a line each
  const std::string space(narrow ? 2 : kLabels, ' '), next = narrow ? "\n" + space : "  ";
  return out + fmt::format("{}{} resident {}{}{} step {}{}{} peak, in {}\n", space, signs.resident,
                           human_bytes(resident), next, signs.eighths[8],
                           human_bytes(alive - resident), next, signs.peak,
                           plain(view.program_of(view.peak).name.view(), 16));
}

}  // namespace snug
