// A frame for pictures: an SVG stretched to the width of the page under labels that are HTML, so
// that text keeps its size on every screen.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace snug {

// Shapes are in a box 1000 wide and `height` high, y downwards; height units are CSS pixels.
class Plot {
 public:
  static constexpr double kWidth = 1000;

  // `label` is what a screen reader says.
  Plot(int height, std::string label) : height_(height), label_(std::move(label)) {}

  void shape(const std::string& svg) { shapes_ += svg; }
  void overlay(const std::string& html) { overlay_ += html; }
  void y_tick(double y, const std::string& text);  // with a grid line
  void x_tick(double x, const std::string& text);  // x in [0, 1], with a grid line
  void x_title(const std::string& text) { x_title_ = text; }
  // `attributes` go to the frame, `css` are further classes of it.
  std::string html(const std::string& css = "", const std::string& attributes = "") const;

 private:
  int height_;
  std::string label_, grid_, shapes_, overlay_, x_title_;
};

// The line that the page's script moves through all pictures of a step.
std::string cursor_line(int height);

struct Series {
  std::string label, css;                         // css: classes of the line, s0 .. s3, d1 .. d3
  std::vector<std::pair<double, double>> points;  // x ascending; y not finite: a gap
  bool dots = false;
};

// A vertical line at x, or with `y` a ring around that point; the label stands in the caption, once
// for all marks that share it.
struct ChartMark {
  double x = 0;
  std::string label;
  std::optional<double> y = {};
};

// Lines over a linear axis with round ticks. At most about a thousand points of a series are drawn:
// the lowest and the highest of each bucket, so that spikes stay. A series without a finite point
// is left out; without any, a sentence says so. `x_range`: what the axis reaches over at least, so
// that charts below each other have one.
std::string line_chart(const std::string& title, const std::string& x_title,
                       const std::vector<Series>& series, bool from_zero, int height,
                       const std::vector<ChartMark>& marks = {},
                       std::optional<std::pair<double, double>> x_range = {});

}  // namespace snug
