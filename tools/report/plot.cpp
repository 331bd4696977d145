#include "tools/report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/report/markup.h"

namespace snug {
namespace {

constexpr size_t kBuckets = 500;

using Points = std::vector<std::pair<double, double>>;

// The lowest and the highest point of each bucket, in order; gaps are kept.
Points thin(const Points& points) {
  if (points.size() <= 2 * kBuckets) return points;
  Points out;
  for (size_t b = 0; b < kBuckets; ++b) {
    const size_t begin = b * points.size() / kBuckets, end = (b + 1) * points.size() / kBuckets;
    size_t low = end, high = end;
    bool gap = false;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(points[i].second)) {
        gap = true;
        continue;
      }
      if (low == end || points[i].second < points[low].second) low = i;
      if (high == end || points[i].second > points[high].second) high = i;
    }
    if (low != end) out.push_back(points[std::min(low, high)]);
    if (low != high) out.push_back(points[std::max(low, high)]);
    if (gap) out.emplace_back(points[begin].first, std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

// So that the difference of two is finite. Not NaN.
double held(double y) {
  constexpr double kMost = 1e300;
  return std::clamp(y, -kMost, kMost);
}

bool drawable(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second);
}

}  // namespace

void Plot::y_tick(double y, const std::string& text) {
  grid_ += fmt::format("<line class=\"grid\" x1=\"0\" x2=\"1000\" y1=\"{0}\" y2=\"{0}\"/>",
                       coordinate(y));
  overlay_ += fmt::format("<span class=\"yt\" style=\"top:{}px\">{}</span>", coordinate(y),
                          escape_html(text));
}

void Plot::x_tick(double x, const std::string& text) {
  grid_ += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"{1}\"/>",
                       coordinate(x * kWidth), height_);
  overlay_ += fmt::format("<span class=\"xt\" style=\"left:{}%\">{}</span>", coordinate(100 * x),
                          escape_html(text));
}

std::string Plot::html(const std::string& css, const std::string& attributes) const {
  std::string out = fmt::format(
      "<div class=\"plot {}\" style=\"height:{}px\" {}>"
      "<svg viewBox=\"0 0 1000 {}\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{}\">{}{}</svg>{}</div>\n",
      css, height_, attributes, height_, escape_html(label_), grid_, shapes_, overlay_);
  if (!x_title_.empty()) out += fmt::format("<p class=\"axis\">{}</p>\n", escape_html(x_title_));
  return out;
}

std::string cursor_line(int height) {
  return fmt::format("<line class=\"cursor\" x1=\"0\" x2=\"0\" y1=\"0\" y2=\"{}\"/>", height);
}

std::string line_chart(const std::string& title, const std::string& x_title,
                       const std::vector<Series>& series, bool from_zero, int height,
                       const std::vector<ChartMark>& marks,
                       std::optional<std::pair<double, double>> x_range) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  double x0 = kInf, x1 = -kInf, y0 = kInf, y1 = -kInf;
  std::vector<Series> shown;
  for (const Series& s : series) {
    if (std::none_of(s.points.begin(), s.points.end(), drawable)) continue;
    shown.push_back(s);
    for (const auto& p : s.points) {
      if (!drawable(p)) continue;
      x0 = std::min(x0, p.first);
      x1 = std::max(x1, p.first);
      y0 = std::min(y0, held(p.second));
      y1 = std::max(y1, held(p.second));
    }
  }
  std::string head = fmt::format("<figure class=\"chart\"><figcaption>{}", escape_html(title));
  // Also where one of several has points: which one it is.
  if (series.size() > 1)
    for (const Series& s : shown)
      head += fmt::format(" <span class=\"key\"><span class=\"line {}\"></span>{}</span>", s.css,
                          escape_html(s.label));
  std::vector<std::string> said;
  for (const ChartMark& m : marks) {
    if (shown.empty() || std::find(said.begin(), said.end(), m.label) != said.end()) continue;
    said.push_back(m.label);
    head += fmt::format(" <span class=\"key\"><span class=\"{}\"></span>{}</span>",
                        m.y ? "ring still" : "leg still", escape_html(m.label));
  }
  head += "</figcaption>\n";
  if (shown.empty()) return head + "<p class=\"note\">Nothing measured.</p></figure>\n";

  if (x_range) {
    x0 = std::min(x0, x_range->first);
    x1 = std::max(x1, x_range->second);
  }
  if (from_zero) y0 = std::min(y0, 0.0);
  if (y1 - y0 < 1e-12 * std::max(std::fabs(y0), std::fabs(y1)) || y1 == y0) {
    const double room = y1 == 0 ? 1 : 0.1 * std::fabs(y1);
    if (!from_zero) y0 -= room;
    y1 += room;
  }
  // Whole ticks at both ends, so that no point touches the frame.
  const std::vector<double> rough = nice_ticks(y0, y1, 7);
  const double step = rough.size() > 1 ? rough[1] - rough[0] : (y1 - y0) / 2;
  y0 = std::floor(y0 / step + 1e-9) * step;
  y1 = std::ceil(y1 / step - 1e-9) * step;
  const double x_room = x1 > x0 ? 0 : 0.5;
  x0 -= x_room;
  x1 += x_room;
  const auto px = [&](double x) { return (x - x0) / (x1 - x0); };
  const auto py = [&](double y) { return height * (1 - (held(y) - y0) / (y1 - y0)); };

  std::string spoken = title + ":";
  for (const Series& s : shown)
    for (auto p = s.points.rbegin(); p != s.points.rend(); ++p)
      if (drawable(*p)) {
        spoken += fmt::format(" last {} {:.6g} at {:.6g};", s.label, p->second, p->first);
        break;
      }
  Plot plot(height, spoken);
  // Small errors of the ends must not add or lose a tick: count in whole steps.
  const auto ticks = static_cast<int>(std::lround((y1 - y0) / step));
  for (int k = 0; k <= std::min(ticks, 20); ++k)
    plot.y_tick(py(y0 + k * step), tick_text(y0 + k * step, step));
  std::vector<double> xs;
  for (const double t : nice_ticks(x0, x1, height < 180 ? 4 : 8))
    if (t == std::floor(t) || x1 - x0 < 4) xs.push_back(t);
  if (x_room > 0) xs = {(x0 + x1) / 2};
  for (const double t : xs) plot.x_tick(px(t), tick_text(t, xs.size() > 1 ? xs[1] - xs[0] : 1));
  plot.x_title(x_title);
  for (const ChartMark& m : marks) {
    if (!std::isfinite(m.x) || m.x < x0 || m.x > x1 || (m.y && !std::isfinite(*m.y))) continue;
    if (m.y)
      plot.overlay(
          fmt::format("<span class=\"ring\" style=\"left:{}%;top:{}px\" title=\"{}\"></span>",
                      coordinate(100 * px(m.x)), coordinate(py(*m.y)), escape_html(m.label)));
    else
      plot.shape(fmt::format("<line class=\"legline\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"{1}\"/>",
                             coordinate(px(m.x) * Plot::kWidth), height));
  }
  for (const Series& s : shown) {
    std::string path;
    bool pen = false;
    for (const auto& p : thin(s.points)) {
      if (!drawable(p)) {
        pen = false;
        continue;
      }
      path += fmt::format("{}{} {}", pen ? "L" : "M", coordinate(px(p.first) * Plot::kWidth),
                          coordinate(py(p.second)));
      if (s.dots && s.points.size() <= 200)
        plot.overlay(fmt::format(
            "<span class=\"dot {}\" style=\"left:{}%;top:{}px\" title=\"{}\"></span>", s.css,
            coordinate(100 * px(p.first)), coordinate(py(p.second)),
            escape_html(fmt::format("{} {:.6g} at {:.6g}", s.label, p.second, p.first))));
      pen = true;
    }
    plot.shape(fmt::format("<path class=\"curve {}\" d=\"{}\"/>", s.css, path));
    // A lone point draws no line.
    if (!s.dots && std::count_if(s.points.begin(), s.points.end(), drawable) == 1)
      for (const auto& p : s.points)
        if (drawable(p))
          plot.overlay(fmt::format("<span class=\"dot {}\" style=\"left:{}%;top:{}px\"></span>",
                                   s.css, coordinate(100 * px(p.first)), coordinate(py(p.second))));
  }
  return head + plot.html() + "</figure>\n";
}

}  // namespace snug
