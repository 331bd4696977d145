// The stacked picture of one step.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"
#include "tools/report/plot.h"
#include "tools/report/tensor_facts.h"

namespace snug {
namespace {

constexpr int kMomentsHeight = 380;
constexpr size_t kHolders = 12;
constexpr size_t kMomentRows = 40;

// The outline of a band: along its top to the right, along its bottom back.
std::string band_path(const std::vector<double>& bottom, const std::vector<double>& top) {
  const double width = Plot::kWidth / static_cast<double>(top.size());
  std::string d = "M0 " + coordinate(top[0]);
  for (size_t i = 1; i < top.size(); ++i)
    if (coordinate(top[i]) != coordinate(top[i - 1]))
      d += "H" + coordinate(static_cast<double>(i) * width) + "V" + coordinate(top[i]);
  d += "H1000V" + coordinate(bottom.back());
  for (size_t i = top.size() - 1; i > 0; --i)
    if (coordinate(bottom[i]) != coordinate(bottom[i - 1]))
      d += "H" + coordinate(static_cast<double>(i) * width) + "V" + coordinate(bottom[i - 1]);
  return d + "H0Z";
}

std::string level_line(double y, const char* css) {
  return fmt::format("<line class=\"level {0}\" x1=\"0\" x2=\"1000\" y1=\"{1}\" y2=\"{1}\"/>", css,
                     coordinate(y));
}

std::string level_label(double y, const char* css, const std::string& text) {
  return fmt::format("<span class=\"lv {}\" style=\"top:{}px\">{}</span>", css, coordinate(y),
                     escape_html(text));
}

std::vector<Category> categories_of(const StepView& view) {
  std::vector<Category> list;
  for (int c = 0; c < kCategories; ++c)
    if (std::any_of(view.bands.begin(), view.bands.end(),
                    [&](const StepBand& b) { return static_cast<int>(b.category) == c; }))
      list.push_back(static_cast<Category>(c));
  return list;
}

std::string place_of(const StepView& view, const StepMoment& m) {
  return view.program_of(m).name.str() + ", " + view.op_of(m);
}

CategoryBytes by_category(const StepView& view, const StepColumn& column) {
  CategoryBytes bytes{};
  for (size_t b = 0; b < view.bands.size(); ++b)
    bytes[static_cast<size_t>(view.bands[b].category)] += column.bytes[b];
  return bytes;
}

int64_t sum_of(const CategoryBytes& bytes) {
  int64_t sum = 0;
  for (const int64_t b : bytes) sum += b;
  return sum;
}

// Legend and readout in one: the bytes of every category at the cursor, at first at the peak.
std::string readout(const StepView& view) {
  const CategoryBytes bytes = view.bytes_at(view.peak);
  std::string out = "<div class=\"readout\"><p id=\"where\">At the peak: " +
                    escape_html(place_of(view, view.peak)) + "</p><ul>";
  std::vector<Category> order = categories_of(view);
  std::reverse(order.begin(), order.end());  // as stacked, from the top
  for (const Category c : order)
    out += fmt::format(
        "<li><span class=\"sw {}\"></span><span>{}</span><span class=\"num\" id=\"v{}\">{}</span>"
        "</li>",
        category_class(c), category_label(c), static_cast<int>(c),
        human_bytes(bytes[static_cast<size_t>(c)]));
  return out + fmt::format(
                   "<li class=\"sum\"><span></span><span>alive</span><span class=\"num\" "
                   "id=\"vsum\">{}</span></li></ul></div>\n",
                   human_bytes(sum_of(bytes)));
}

// {"n": columns, "peak": column, "cats": [..], "names": [..], "runs": [[column, name, bytes..]..]}
std::string script_data(const StepView& view) {
  const std::vector<Category> categories = categories_of(view);
  std::map<std::string, int> index;
  std::string names, runs, last;
  for (size_t i = 0; i < view.columns.size(); ++i) {
    const std::string place = place_of(view, view.columns[i].moment);
    const auto [it, fresh] = index.emplace(place, static_cast<int>(index.size()));
    if (fresh) names += (names.empty() ? "" : ",") + json_text(place);
    const CategoryBytes bytes = by_category(view, view.columns[i]);
    std::string row = std::to_string(it->second);
    for (const Category c : categories) row += "," + std::to_string(bytes[static_cast<size_t>(c)]);
    if (row == last) continue;
    runs += fmt::format("{}[{},{}]", runs.empty() ? "" : ",", i, row);
    last = row;
  }
  std::string cats;
  for (const Category c : categories)
    cats += (cats.empty() ? "" : ",") + std::to_string(static_cast<int>(c));
  const auto n = static_cast<int>(view.columns.size());
  return fmt::format(
      "<script type=\"application/json\" id=\"step\">"
      "{{\"n\":{},\"peak\":{},\"cats\":[{}],\"names\":[{}],\"runs\":[{}]}}</script>\n",
      n, std::clamp(static_cast<int>(view.x_of(view.peak) * n), 0, n - 1), cats, names, runs);
}

std::string holders_table(const StepView& view) {
  const std::vector<HeldTensor> held = view.held(view.peak);
  int64_t sum = 0;
  for (const HeldTensor& h : held) sum += h.tensor->bytes;
  std::string out =
      "<div class=\"scroll\"><table><caption>What holds the memory at the peak</caption><thead><tr>"
      "<th scope=\"col\">tensor</th><th scope=\"col\">for</th><th scope=\"col\">in program</th>"
      "<th scope=\"col\" class=\"num\">bytes</th><th "
      "scope=\"col\">share</th><th scope=\"col\">why it is there</th></tr></thead><tbody>\n";
  int64_t rest = 0;
  const auto bar = [&](int64_t bytes, const std::string& css) {
    const double share = sum > 0 ? static_cast<double>(bytes) / static_cast<double>(sum) : 0;
    return fmt::format(
        "<td class=\"bar\"><span class=\"fill {}\" style=\"width:{}px\"></span>{:.1f}%</td>", css,
        coordinate(200 * share), 100 * share);
  };
  for (size_t k = 0; k < held.size(); ++k) {
    const TensorRecord& t = *held[k].tensor;
    if (k >= kHolders) {
      rest += t.bytes;
      continue;
    }
    out += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"num\">{}</td>",
        escape_html(t.name.view()), category_label(t.category),
        escape_html(view.schedule->at(held[k].program).name.view()), data_bytes(t.bytes));
    out += bar(t.bytes, category_class(t.category)) +
           fmt::format("<td>{}</td></tr>\n",
                       escape_html(why_there(view.schedule->at(held[k].program), held[k].index)));
  }
  if (held.size() > kHolders)
    out += fmt::format(
               "<tr><th scope=\"row\">{} others</th><td></td><td></td><td class=\"num\">{}"
               "</td>",
               held.size() - kHolders, data_bytes(rest)) +
           bar(rest, "") + "<td></td></tr>\n";
  return out + "</tbody></table></div>\n";
}

// The picture's numbers for those who do not see it.
std::string moments_table(const StepView& view) {
  std::vector<StepMoment> moments;
  const size_t n = view.columns.size();
  const auto before = [](const StepMoment& a, const StepMoment& b) {
    return a.segment != b.segment ? a.segment < b.segment : a.state < b.state;
  };
  for (size_t k = 0; k < std::min(kMomentRows, n); ++k)
    moments.push_back(view.columns[k * n / std::min(kMomentRows, n)].moment);
  moments.push_back(view.peak);
  std::sort(moments.begin(), moments.end(), before);
  moments.erase(std::unique(moments.begin(), moments.end(),
                            [](const StepMoment& a, const StepMoment& b) {
                              return a.segment == b.segment && a.state == b.state;
                            }),
                moments.end());
  const std::vector<Category> categories = categories_of(view);
  std::string out =
      "<details><summary>The same as a table</summary><div class=\"scroll\"><table><caption>Bytes "
      "alive along the step</caption><thead><tr><th scope=\"col\">program, op</th>"
      "<th scope=\"col\" class=\"num\">alive</th>";
  for (const Category c : categories)
    out += fmt::format("<th scope=\"col\" class=\"num\">{}</th>", category_label(c));
  out += "</tr></thead><tbody>\n";
  for (const StepMoment& m : moments) {
    const bool peak = m.segment == view.peak.segment && m.state == view.peak.state;
    const CategoryBytes bytes = view.bytes_at(m);
    out += fmt::format("<tr{}><th scope=\"row\">{}{}</th><td class=\"num\">{}</td>",
                       peak ? " class=\"sum\"" : "", escape_html(place_of(view, m)),
                       peak ? " (the peak)" : "", data_bytes(sum_of(bytes)));
    for (const Category c : categories)
      out += fmt::format("<td class=\"num\">{}</td>", grouped(bytes[static_cast<size_t>(c)]));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div></details>\n";
}

// The bands from the bottom up, and the programs under them.
template <class Y>
void draw_bands(Plot& plot, const StepView& view, const Y& y, bool residents, int height) {
  const size_t n = view.columns.size();
  std::vector<int64_t> sum(n, 0);
  std::vector<double> bottom(n, static_cast<double>(height)), line(n);
  for (size_t b = 0; b < view.bands.size(); ++b) {
    const StepBand& band = view.bands[b];
    if (band.resident && !residents) continue;
    for (size_t i = 0; i < n; ++i) line[i] = y(sum[i] += view.columns[i].bytes[b]);
    plot.shape(fmt::format("<path class=\"{}{}\" d=\"{}\"><title>{}{}</title></path>",
                           category_class(band.category), band.group % 2 == 1 ? " odd" : "",
                           band_path(bottom, line), escape_html(band.label),
                           band.resident ? ", resident" : ""));
    if (band.resident && bottom[0] - line[0] >= 16 && bottom[n / 2] - line[n / 2] >= 16)
      plot.overlay(fmt::format("<span class=\"name {}\" style=\"top:{}px\">{}</span>",
                               category_class(band.category), coordinate((bottom[0] + line[0]) / 2),
                               category_label(band.category)));
    bottom = line;
  }

  draw_segments(plot, view, height);
}

// The step's own bytes on a scale of their own, where residents would flatten them.
std::string enlarged_picture(const StepView& view) {
  constexpr int kSmall = 220;
  const int64_t base = view.crowding_residents();
  if (base == 0) return "";
  int64_t highest = 1;
  for (const StepColumn& c : view.columns) highest = std::max(highest, c.total - base);
  const double top = static_cast<double>(highest) * 1.08;
  const auto y = [&](int64_t bytes) { return kSmall * (1 - static_cast<double>(bytes) / top); };
  Plot plot(kSmall, "The same without residents; at most " + human_bytes(highest) + ".");
  for (const int64_t t : byte_ticks(static_cast<int64_t>(top), 5))
    plot.y_tick(y(t), byte_tick_text(t));
  draw_bands(plot, view, y, false, kSmall);
  return fmt::format("<p class=\"note\">The same without the {} of residents:</p>\n",
                     human_bytes(base)) +
         plot.html();
}

// The largest of those that are resident or of the step, as "name 1.00 MiB, ...".
std::string largest(const StepView& view, const std::vector<HeldTensor>& held, bool resident) {
  std::string names;
  int left = 3;
  for (const HeldTensor& h : held)
    if (view.schedule->at(h.program).resident == resident && left-- > 0)
      names += fmt::format("{}{} {}", names.empty() ? "" : ", ", h.tensor->name.view(),
                           human_bytes(h.tensor->bytes));
  return names.empty() ? "none" : names;
}

std::string peak_label(const StepView& view) {
  const std::vector<HeldTensor> held = view.held(view.peak);
  const double x = view.x_of(view.peak);
  return fmt::format(
      "<div class=\"peak {}\" style=\"{}:{}%\"><b>peak {}</b> at {}<br/>residents: {}<br/>"
      "of the step: {}</div>",
      x < 0.5 ? "right" : "left", x < 0.5 ? "left" : "right",
      coordinate(100 * (x < 0.5 ? x : 1 - x)), human_bytes(sum_of(view.bytes_at(view.peak))),
      escape_html(place_of(view, view.peak)), escape_html(largest(view, held, true)),
      escape_html(largest(view, held, false)));
}

}  // namespace

std::string axis_title(const StepView& view) {
  const std::string tail = (view.times_text.empty() ? "" : " (" + view.times_text + ")") +
                           std::string("; what is short is widened");
  if (view.source == StepTimes::Source::measured) return "measured time" + tail;
  if (view.source == StepTimes::Source::predicted) return "predicted time" + tail;
  return "schedule position, weighted by work";
}

void draw_segments(Plot& plot, const StepView& view, int height) {
  for (const StepSegment& s : view.segments) {
    const double left = s.x.front(), width = s.x.back() - s.x.front();
    if (left > 0)
      plot.shape(fmt::format("<line class=\"cut\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"{1}\"/>",
                             coordinate(left * Plot::kWidth), height));
    const bool often = s.label != view.schedule->at(s.program).name.view();
    const std::string text =
        view.source == StepTimes::Source::weights
            ? s.label
            : s.label + ", " + short_seconds(s.start.back()) + (often ? " each" : "");
    plot.overlay(fmt::format(
        "<span class=\"seg\" style=\"left:{}%;width:{}%\" title=\"{}\">{}</span>",
        coordinate(100 * left), coordinate(100 * width), escape_html(text), escape_html(text)));
  }
}

int64_t arena_lower_bound(const Plan& plan) {
  if (plan.schedule.size() == 0) return 0;
  const Program& peak = plan.schedule.at(plan.schedule.peak_program());
  return peak.base + peak.packing.lower_bound;
}

std::string tiers_picture(const Plan& plan) {
  struct Tier {
    const char *name, *css;
    int64_t bytes;
  };
  std::vector<Tier> tiers;
  for (const Tier& t :
       {Tier{"arena", "lane0", plan.engine_bytes}, Tier{"host", "lane2", plan.host_bytes},
        Tier{"disk", "lane3", plan.disk.bytes}})
    if (t.bytes > 0) tiers.push_back(t);
  if (tiers.size() < 2) return "";
  constexpr int kBar = 34;
  int64_t most = 1;
  std::string words;
  for (const Tier& t : tiers) {
    most = std::max(most, t.bytes);
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", t.name, human_bytes(t.bytes));
  }
  Plot plot(kBar * static_cast<int>(tiers.size()), "What rests where: " + words + ".");
  double y = 4;
  for (const Tier& t : tiers) {
    plot.y_tick(y + kBar / 2.0 - 4, t.name);
    plot.shape(fmt::format(
        "<rect class=\"{}\" x=\"0\" y=\"{}\" width=\"{}\" height=\"{}\">"
        "<title>{}: {} bytes</title></rect>\n",
        t.css, coordinate(y),
        coordinate(
            std::max(1.0, Plot::kWidth * static_cast<double>(t.bytes) / static_cast<double>(most))),
        kBar - 8, t.name, grouped(t.bytes)));
    plot.overlay(level_label(y + kBar / 2.0 + 4, "at-right", human_bytes(t.bytes)));
    y += kBar;
  }
  return "<h2>Tiers</h2>\n<p class=\"sub\">What rests where, to one scale: the arena, the host's "
         "beside it, the "
         "file on disk. None is part of another.</p>\n" +
         plot.html("tiers");
}

std::string memory_picture(const Plan& plan, const StepView& view) {
  const int64_t bound = arena_lower_bound(plan);
  const int64_t room = plan.budget > 0 ? plan.budget - plan.runtime_bytes : 0;
  int64_t highest = std::max({int64_t{1}, plan.engine_bytes, bound});
  for (const StepColumn& c : view.columns) highest = std::max(highest, c.total);
  const bool show_room = room > 0 && room <= 2 * highest;
  auto top = static_cast<double>(highest) * 1.08;
  if (show_room) top = std::max(top, static_cast<double>(room) * 1.08);
  const auto y = [&](int64_t bytes) {
    return kMomentsHeight * (1 - static_cast<double>(bytes) / top);
  };

  Plot plot(kMomentsHeight,
            fmt::format("Memory over one step. The peak is {} in {}; the arena is {}.",
                        human_bytes(sum_of(view.bytes_at(view.peak))), place_of(view, view.peak),
                        human_bytes(plan.engine_bytes)));
  for (const int64_t t : byte_ticks(static_cast<int64_t>(top), 7))
    plot.y_tick(y(t), byte_tick_text(t));

  draw_bands(plot, view, y, true, kMomentsHeight);
  const double peak = view.x_of(view.peak) * Plot::kWidth;
  plot.shape(fmt::format("<line class=\"peakline\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"{1}\"/>",
                         coordinate(peak), kMomentsHeight));
  plot.shape(cursor_line(kMomentsHeight));

  plot.shape(level_line(y(plan.engine_bytes), "arena"));
  plot.overlay(level_label(
      y(plan.engine_bytes), "at-right",
      "arena " + human_bytes(plan.engine_bytes) +
          (round_up(bound, 4096) == plan.engine_bytes ? ", equal to the lower bound" : "")));
  if (round_up(bound, 4096) != plan.engine_bytes && bound > 0) {
    plot.shape(level_line(y(bound), "bound"));
    plot.overlay(level_label(y(bound), "at-middle below", "lower bound " + human_bytes(bound)));
  }
  if (show_room) {
    plot.shape(level_line(y(room), "budget"));
    // Away from the peak's line.
    plot.overlay(level_label(y(room), view.x_of(view.peak) < 0.35 ? "at-middle" : "at-left",
                             "budget less runtime " + human_bytes(room)));
  }
  plot.overlay(peak_label(view));
  plot.x_title(axis_title(view));

  // The script makes it a slider; without a script it is a picture.
  std::string out = plot.html("stack", "id=\"stack\"");
  if (room > 0 && !show_room)
    out += fmt::format(
        "<p class=\"note\">The budget less the runtime's share, {}, lies above the "
        "picture.</p>\n",
        human_bytes(room));
  if (plan.budget > 0 && room <= 0)
    out += "<p class=\"note\">The runtime alone is larger than the budget.</p>\n";
  return out + enlarged_picture(view) + readout(view) + script_data(view) + holders_table(view) +
         moments_table(view);
}

}  // namespace snug
