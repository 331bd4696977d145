// The ladder: what another budget would bring.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"

namespace snug {
namespace {

constexpr int kLadderHeight = 220;

std::string rate_text(double rate) {
  return fmt::format("{:.{}f}", rate, rate < 100 ? 1 : 0);
}

std::string neighbour(const char* direction, const ReportRung& from, const ReportRung& to) {
  const double change =
      from.tokens_per_second > 0 ? to.tokens_per_second / from.tokens_per_second - 1 : 0;
  const int64_t bytes = to.budget - from.budget;
  return fmt::format("<p>One rung {}: {} {} of budget, {:+.1f} % tokens a second. {}</p>\n",
                     direction, human_bytes(bytes < 0 ? -bytes : bytes),
                     bytes < 0 ? "less" : "more", 100 * change, escape_html(to.sentence));
}

}  // namespace

std::string ladder_picture(const std::vector<ReportRung>& ladder) {
  if (ladder.empty()) return "";
  double fastest = 0;
  for (const ReportRung& r : ladder)
    if (std::isfinite(r.tokens_per_second)) fastest = std::max(fastest, r.tokens_per_second);
  if (fastest <= 0) fastest = 1;
  // From somewhat below the first budget to somewhat above the last, which goes on.
  const auto least = static_cast<double>(ladder.front().budget);
  const auto most = static_cast<double>(ladder.back().budget);
  const double room = std::max(0.06 * (most - least), 0.02 * most + 1);
  const double x0 = std::max(0.0, least - room), x1 = most + room;
  const double top = fastest * 1.12;
  const auto px = [&](int64_t bytes) { return (static_cast<double>(bytes) - x0) / (x1 - x0); };
  const auto py = [&](double rate) {
    return kLadderHeight * (1 - (std::isfinite(rate) ? rate : 0) / top);
  };

  const auto current =
      std::find_if(ladder.begin(), ladder.end(), [](const ReportRung& r) { return r.current; });
  Plot plot(kLadderHeight,
            fmt::format("Predicted tokens a second against the budget, {} rungs from {} to {}.",
                        ladder.size(), human_bytes(ladder.front().budget),
                        human_bytes(ladder.back().budget)));
  const std::vector<double> rates = nice_ticks(0, top, 5);
  for (const double t : rates) plot.y_tick(py(t), tick_text(t, rates.size() > 1 ? rates[1] : t));
  for (const int64_t t : byte_ticks(static_cast<int64_t>(x1), 9))
    if (static_cast<double>(t) >= x0) plot.x_tick(px(t), byte_tick_text(t));
  plot.x_title("budget; every rung holds until the next one");
  std::string path;
  for (size_t i = 0; i < ladder.size(); ++i) {
    const double x = px(ladder[i].budget) * Plot::kWidth, y = py(ladder[i].tokens_per_second);
    path += i == 0 ? fmt::format("M{} {}", coordinate(x), coordinate(y))
                   : fmt::format("H{}V{}", coordinate(x), coordinate(y));
    plot.overlay(
        fmt::format("<span class=\"dot {}\" style=\"left:{}%;top:{}px\" title=\"{}\"></span>",
                    ladder[i].current ? "here" : "s2", coordinate(x / 10), coordinate(y),
                    escape_html(fmt::format("{}: {:.0f} tokens/s", human_bytes(ladder[i].budget),
                                            ladder[i].tokens_per_second))));
  }
  plot.shape(fmt::format("<path class=\"curve s2\" d=\"{}H1000\"/>", path));
  if (current != ladder.end()) {
    const double x = px(current->budget);
    plot.overlay(fmt::format("<span class=\"lv here\" style=\"{}:{}%;top:{}px\">this plan</span>",
                             x < 0.5 ? "left" : "right", coordinate(100 * (x < 0.5 ? x : 1 - x)),
                             coordinate(py(current->tokens_per_second) - 4)));
  }

  std::string out =
      "<h2>The ladder</h2>\n<p class=\"sub\">The fastest plan for each budget, as predicted. "
      "Between "
      "two rungs nothing changes.</p>\n" +
      plot.html("ladder");
  if (current != ladder.end()) {
    if (current + 1 != ladder.end()) out += neighbour("up", *current, *(current + 1));
    if (current != ladder.begin()) out += neighbour("down", *current, *(current - 1));
  }
  out +=
      "<div class=\"scroll\"><table><caption>Rungs</caption><thead><tr><th scope=\"col\" "
      "class=\"num\">budget</th><th scope=\"col\" class=\"num\">engine</th><th scope=\"col\" "
      "class=\"num\">tokens/s</th><th scope=\"col\" class=\"num\">micro-batch</th><th "
      "scope=\"col\">recompute</th><th scope=\"col\">plan</th></tr></thead><tbody>\n";
  for (const ReportRung& r : ladder)
    out += fmt::format(
        "<tr{}><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{}</td><td>{}</td><td>{}{}</td></tr>\n",
        r.current ? " class=\"sum\"" : "", human_bytes(r.budget), data_bytes(r.engine_bytes),
        rate_text(r.tokens_per_second), r.micro_batch, escape_html(r.recompute),
        escape_html(r.sentence), r.current ? " (this plan)" : "");
  return out + "</tbody></table></div>\n";
}

}  // namespace snug
