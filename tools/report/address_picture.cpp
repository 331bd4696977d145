// The address map: where in the arena every tensor lies, and when.
#include <fmt/format.h>

#include <algorithm>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"
#include "tools/report/plot.h"
#include "tools/report/tensor_facts.h"

namespace snug {
namespace {

constexpr int kMapHeight = 380;
constexpr double kMapVisible = 0.5;   // units of the picture
constexpr size_t kRectangles = 3500;  // drawn one by one; the rest is merged
constexpr double kCell = 2;           // of the raster of merged tensors
constexpr size_t kMapRows = 60;

struct Box {
  const TensorRecord* tensor = nullptr;
  const Program* program = nullptr;
  size_t index = 0;  // of the tensor
  int64_t address = 0;
  double x = 0, y = 0, width = 0, height = 0;
};

// Heights are those of a picture from address `floor` up.
std::vector<Box> boxes_of(const Plan& plan, const StepView& view, int64_t floor) {
  const Schedule& schedule = *view.schedule;
  const auto shown = static_cast<double>(std::max<int64_t>(1, plan.engine_bytes - floor));
  std::vector<Box> list;
  const auto put = [&](int program, size_t k, double from, double to) {
    const Program& p = schedule.at(program);
    const TensorRecord& t = p.tensors[k];
    if (t.bytes <= 0 || to <= from || !in_device_arena(t)) return;
    const int64_t address = address_of(p, k);
    const double height = kMapHeight * static_cast<double>(t.bytes) / shown;
    list.push_back({&t, &p, k, address, from * Plot::kWidth,
                    kMapHeight * (1 - static_cast<double>(address - floor) / shown) - height,
                    (to - from) * Plot::kWidth, height});
  };
  for (int i = 0; i < schedule.size(); ++i) {
    if (!schedule.at(i).resident) continue;
    // Once for each stretch of neighbouring segments that lie above it.
    for (size_t g = 0; g < view.segments.size(); ++g) {
      const auto above = [&](size_t s) {
        return view.segments[s].program != i && is_ancestor(schedule, i, view.segments[s].program);
      };
      if (!above(g)) continue;
      const double from = view.segments[g].x.front();
      while (g + 1 < view.segments.size() && above(g + 1)) ++g;
      for (size_t k = 0; k < schedule.at(i).tensors.size(); ++k)
        put(i, k, from, view.segments[g].x.back());
    }
  }
  for (const StepSegment& s : view.segments) {
    const Program& p = schedule.at(s.program);
    const auto at = [&](int64_t state) {
      return s.x[static_cast<size_t>(std::clamp<int64_t>(state, 0, s.states()))];
    };
    for (size_t k = 0; k < p.tensors.size(); ++k) {
      const TensorRecord& t = p.tensors[k];
      put(s.program, k, at(t.born + 1), t.died == kNever ? s.x.back() : at(t.died + 1));
    }
  }
  return list;
}

std::string life_of(const Box& b) {
  const TensorRecord& t = *b.tensor;
  if (t.died == kNever) return "the whole of " + b.program->name.str();
  const TensorOps ops = ops_of(*b.program, t);
  if (ops.first < 0) return b.program->name.str();
  const auto label = [&](int32_t k) { return op_label(b.program->ops[static_cast<size_t>(k)]); };
  return fmt::format("{}: {}", b.program->name.view(),
                     ops.first == ops.last ? "during " + label(ops.first)
                                           : "from " + label(ops.first) + " to " + label(ops.last));
}

std::string shape_of(const TensorRecord& t) {
  return to_string(t.shape) + " " + to_string(t.dtype);
}

// Its first line names the tensor; the script shows the lines where there is room for them.
std::string rectangle(const Box& b) {
  const TensorRecord& t = *b.tensor;
  std::string scope;
  if (!t.scope.empty()) scope = " in " + t.scope.str();
  return fmt::format(
      "<rect class=\"{}{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}{}\n{} B ({}), "
      "{}, {}\n{}\n{}\nat address {}</title></rect>\n",
      category_class(t.category), b.width > 3 && b.height > 3 ? " edge" : "", coordinate(b.x),
      coordinate(b.y), coordinate(b.width), coordinate(b.height), escape_html(t.name.view()),
      escape_html(scope), grouped(t.bytes), human_bytes(t.bytes), shape_of(t),
      category_label(t.category), escape_html(life_of(b)),
      escape_html(why_there(*b.program, b.index)), grouped(b.address));
}

// Tensors too small to see, as cells of the picture that are at least half covered by them.
std::string merged(const std::vector<Box>& small) {
  const auto columns = static_cast<int>(Plot::kWidth / kCell),
             rows = static_cast<int>(kMapHeight / kCell);
  std::vector<float> cover(static_cast<size_t>(columns * rows), 0.0f);
  std::vector<uint8_t> category(cover.size(), 0);
  for (const Box& b : small) {
    const int c0 = std::clamp(static_cast<int>(b.x / kCell), 0, columns - 1);
    const int c1 = std::clamp(static_cast<int>((b.x + b.width) / kCell), c0, columns - 1);
    const int r0 = std::clamp(static_cast<int>(b.y / kCell), 0, rows - 1);
    const int r1 = std::clamp(static_cast<int>((b.y + b.height) / kCell), r0, rows - 1);
    for (int r = r0; r <= r1; ++r)
      for (int c = c0; c <= c1; ++c) {
        const double w = std::min(b.x + b.width, (c + 1) * kCell) - std::max(b.x, c * kCell);
        const double h = std::min(b.y + b.height, (r + 1) * kCell) - std::max(b.y, r * kCell);
        if (w <= 0 || h <= 0) continue;
        const auto i = static_cast<size_t>(r * columns + c);
        cover[i] += static_cast<float>(w * h / (kCell * kCell));
        category[i] = static_cast<uint8_t>(b.tensor->category);
      }
  }
  std::string out;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns;) {
      const auto i = static_cast<size_t>(r * columns + c);
      int end = c + 1;
      if (cover[i] >= 0.5f) {
        while (end < columns && cover[static_cast<size_t>(r * columns + end)] >= 0.5f &&
               category[static_cast<size_t>(r * columns + end)] == category[i])
          ++end;
        out += fmt::format("<rect class=\"c{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"2\"/>",
                           category[i], coordinate(c * kCell), coordinate(r * kCell),
                           coordinate((end - c) * kCell));
      }
      c = end;
    }
  return out;
}

std::string tensors_table(std::vector<Box> boxes) {
  std::stable_sort(boxes.begin(), boxes.end(),
                   [](const Box& a, const Box& b) { return a.tensor->bytes > b.tensor->bytes; });
  const size_t all = boxes.size();
  boxes.resize(std::min(kMapRows, all));
  std::string out = fmt::format(
      "<details><summary>The largest tensors as a table</summary><div class=\"scroll\"><table>"
      "<caption>{} of {} tensors</caption><thead><tr><th scope=\"col\">tensor</th>"
      "<th scope=\"col\">scope</th><th scope=\"col\">for</th><th scope=\"col\" class=\"num\">bytes"
      "</th><th scope=\"col\" class=\"num\">address</th><th scope=\"col\">alive</th>"
      "<th scope=\"col\">why</th></tr></thead>"
      "<tbody>\n",
      boxes.size(), all);
  for (const Box& b : boxes)
    out += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{}</td><td>{}</td><td>{}</td></tr>\n",
        escape_html(b.tensor->name.view()), escape_html(b.tensor->scope.view()),
        category_label(b.tensor->category), data_bytes(b.tensor->bytes), grouped(b.address),
        escape_html(life_of(b)), escape_html(why_there(*b.program, b.index)));
  return out + "</tbody></table></div></details>\n";
}

}  // namespace

bool is_packed(const Schedule& schedule) {
  for (int i = 0; i < schedule.size(); ++i)
    if (schedule.at(i).packing.offsets.size() != schedule.at(i).tensors.size()) return false;
  return true;
}

std::string address_picture(const Plan& plan, const StepView& view) {
  if (!is_packed(plan.schedule))
    return "<p class=\"note\">No addresses: the schedule is not packed.</p>\n";
  // Where residents fill nearly all, the picture begins above the root's.
  const int64_t floor = view.crowding_residents() > 0 ? plan.schedule.at(0).end() : 0;
  std::vector<Box> boxes = boxes_of(plan, view, floor);
  Plot plot(kMapHeight, fmt::format("Address map: {} tensors in an arena of {}.", boxes.size(),
                                    human_bytes(plan.engine_bytes)));
  const auto shown = static_cast<double>(std::max<int64_t>(1, plan.engine_bytes - floor));
  for (const int64_t t : byte_ticks(plan.engine_bytes - floor, 6))
    plot.y_tick(kMapHeight * (1 - static_cast<double>(t) / shown),
                (floor > 0 ? "+" : "") + byte_tick_text(t));

  std::vector<Box> large, small;
  for (const Box& b : boxes)
    if (b.address >= floor)
      (b.width >= kMapVisible && b.height >= kMapVisible ? large : small).push_back(b);
  std::stable_sort(large.begin(), large.end(), [](const Box& a, const Box& b) {
    return a.width * a.height > b.width * b.height;
  });
  if (large.size() > kRectangles) {
    small.insert(small.end(), large.begin() + static_cast<int64_t>(kRectangles), large.end());
    large.resize(kRectangles);
  }
  plot.shape(merged(small));
  for (const Box& b : large) plot.shape(rectangle(b));
  draw_segments(plot, view, kMapHeight);
  plot.shape("<rect id=\"mark\" class=\"mark\" x=\"0\" y=\"0\" width=\"0\" height=\"0\"/>" +
             cursor_line(kMapHeight));
  plot.x_title(axis_title(view));
  // The script makes it a thing to walk in, tensor by tensor.
  std::string out = plot.html("map", "id=\"map\"");
  out +=
      "<div id=\"about\" class=\"about\" role=\"status\">No tensor is chosen: point at one, or "
      "focus "
      "the map and use the arrow keys.</div>\n";
  if (floor > 0)
    out += fmt::format(
        "<p class=\"note\">Residents lie below the picture, from address 0 to {}; the axis counts "
        "from there.</p>\n",
        grouped(floor));
  if (!small.empty())
    out += fmt::format(
        "<p class=\"note\">{} of {} tensors are too small to see one by one and are merged.</p>\n",
        small.size(), boxes.size());
  return out + tensors_table(std::move(boxes));
}

}  // namespace snug
