#include "tools/report/story.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"

namespace snug {

std::string verdict(const char* css, const char* mark, const std::string& html) {
  return fmt::format("<p class=\"verdict {}\"><b>{}</b> {}</p>\n", css, mark, html);
}

std::string difference_text(int64_t difference) {
  const int64_t size = difference < 0 ? -difference : difference;
  return fmt::format("{} bytes ({}) {}", size, human_bytes(size), difference < 0 ? "less" : "more");
}

int64_t planned_at(const ReportRun& run, double seconds, int64_t engine_bytes) {
  if (run.legs.empty()) return engine_bytes;
  const ReportLeg* leg = &run.legs.front();
  for (const ReportLeg& l : run.legs)
    if (l.seconds <= seconds) leg = &l;
  return leg->engine_bytes;
}

Series series_of(const ReportRun& run, const std::string& label, const std::string& css,
                 double ReportMetric::*field) {
  Series s{label, css, {}, false};
  for (const ReportMetric& m : run.metrics)
    s.points.emplace_back(static_cast<double>(m.step), m.*field);
  return s;
}

namespace {

// The last step that anything was logged of; -1: none.
int64_t last_step(const ReportRun& run) {
  int64_t step = -1;
  if (!run.metrics.empty()) step = run.metrics.back().step;
  if (!run.evals.empty()) step = std::max(step, run.evals.back().step);
  return step;
}

std::string state_line(const ReportRun& run) {
  const int64_t step = last_step(run);
  if (!run.finished && !run.failure.empty())
    return verdict(
        "bad", "failed:",
        fmt::format("{}.{}", escape_html(run.failure),
                    step < 0 ? "" : fmt::format(" The last step written here is {}.", step)));
  if (step < 0)
    return run.legs.empty() ? ""
                            : verdict("", "unfinished:",
                                      fmt::format("no step is logged; it began at {}.",
                                                  escape_html(run.legs.back().when)));
  const std::string when =
      run.written.empty() ? "" : fmt::format(", at {}", escape_html(run.written));
  if (run.finished) return verdict("good", "finished", fmt::format("at step {}{}.", step, when));
  return verdict(
      "", "unfinished:",
      fmt::format("the last step written here is {}{}{}.", step,
                  run.total_steps > 0 ? fmt::format(" of {}", run.total_steps) : "", when));
}

std::string legs_table(const ReportRun& run) {
  if (run.legs.empty()) return "";
  std::string out =
      "<div class=\"scroll\"><table><caption>What ran it, one line for every start; each has a "
      "plan "
      "of its own</caption><thead><tr>";
  for (const char* name : {"from step", "began (UTC)", "machine", "budget", "engine, planned",
                           "tokens/s, predicted", "plan"})
    out += fmt::format("<th scope=\"col\">{}</th>", name);
  out += "</tr></thead><tbody>\n";
  for (const ReportLeg& l : run.legs)
    out += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td class=\"num\">{}</td><td "
        "class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"words\">{}</td></tr>\n",
        l.from_step, escape_html(l.when), escape_html(l.machine),
        l.budget > 0 ? human_bytes(l.budget) : "what was free",
        l.engine_bytes >= 0 ? data_bytes(l.engine_bytes) : "not logged",
        l.predicted_tokens_per_second > 0 ? fmt::format("{:.0f}", l.predicted_tokens_per_second)
                                          : "",
        (l.logged ? "" : "No step of it is logged. ") + escape_html(l.sentence));
  return out + "</tbody></table></div>\n";
}

std::string best_words(const ReportRun& run) {
  std::string text;
  const std::string by = run.best_by == "eval_loss" ? "validation loss"
                                                    : run.best_by.substr(run.best_by.find('_') + 1);
  if (run.best_step >= 0)
    text =
        fmt::format("Best: {} {:.4f} at step {}.", escape_html(by), run.best_value, run.best_step);
  if (run.final_step >= 0)
    text += fmt::format("{}<code>final/</code> holds the weights of step {}{}.",
                        text.empty() ? "" : " ", run.final_step,
                        run.final_step == run.best_step ? ", the best ones"
                        : run.best_step >= 0            ? ", not the best ones"
                                                        : "");
  return text.empty() ? "" : "<p>" + text + "</p>\n";
}

std::string curves(const ReportRun& run) {
  if (run.metrics.empty() && run.evals.empty()) return "";
  Series evals{"evaluation", "s1", {}, true};
  for (const ReportEval& e : run.evals)
    evals.points.emplace_back(static_cast<double>(e.step), e.loss);
  std::vector<ChartMark> legs;
  for (size_t i = 1; i < run.legs.size(); ++i)
    legs.push_back({static_cast<double>(run.legs[i].from_step), "went on from a checkpoint"});
  std::vector<ChartMark> marks = legs;
  for (const ReportEval& e : run.evals)
    if (e.step == run.best_step && e.step > 0)
      marks.push_back({static_cast<double>(e.step), "best", e.loss});
  std::string out = "<h2>Learning</h2>\n";
  out += line_chart("Loss", "step", {series_of(run, "training", "s0", &ReportMetric::loss), evals},
                    false, 280, marks);
  out += best_words(run);
  if (run.metrics.empty()) return out;
  const int64_t first = run.evals.empty()
                            ? run.metrics.front().step
                            : std::min(run.metrics.front().step, run.evals.front().step);
  const std::pair<double, double> steps(first, last_step(run));
  const ReportMetric& last = run.metrics.back();
  out += fmt::format("<p>Last step {}: loss {:.4f}, {:.0f} tokens/s, {} of training.</p>\n",
                     last.step, last.loss, last.tokens_per_second, human_seconds(last.seconds));
  out += "<div class=\"small\">\n";
  out += line_chart("Tokens per second", "step",
                    {series_of(run, "tokens/s", "s2", &ReportMetric::tokens_per_second)}, true, 150,
                    legs, steps);
  out += line_chart("Gradient norm", "step",
                    {series_of(run, "gradient norm", "s3", &ReportMetric::grad_norm)}, true, 150,
                    legs, steps);
  out += line_chart("Learning rate", "step",
                    {series_of(run, "learning rate", "s0", &ReportMetric::learning_rate)}, true,
                    150, legs, steps);
  return out + "</div>\n";
}

// The last one open, those before it to unfold; of many some evenly spaced.
std::string samples(const ReportRun& run) {
  if (run.samples.empty()) return "";
  constexpr size_t kMost = 24;
  const size_t n = run.samples.size(), stride = (n + kMost - 1) / kMost;
  std::string out =
      "<h2>Samples</h2>\n<p class=\"sub\">Text written by the model while it learned, the latest "
      "first.</p>\n";
  for (size_t i = n; i-- > 0;) {
    if ((n - 1 - i) % stride != 0) continue;
    const ReportSample& s = run.samples[i];
    out += fmt::format("<details{}><summary>step {}</summary><pre>{}</pre></details>\n",
                       i + 1 == n ? " open=\"\"" : "", s.step, escape_html(s.text));
  }
  return out;
}

}  // namespace

std::string story_html(const ReportRun& run) {
  return state_line(run) + legs_table(run) + curves(run) + samples(run);
}

std::string measured_picture(const ReportRun& run, int64_t engine_bytes) {
  // Seconds and bytes more than planned.
  std::vector<std::pair<double, int64_t>> found;
  for (const auto& [seconds, bytes] : run.memory_samples)
    if (const int64_t planned = planned_at(run, seconds, engine_bytes); planned >= 0)
      found.emplace_back(seconds, bytes - planned);
  if (found.empty()) return "";
  // Of a long run not every line is here.
  int64_t lines = 0;
  for (const ReportLeg& leg : run.legs)
    if (leg.engine_bytes >= 0) lines += leg.samples;
  if (lines == 0) lines = static_cast<int64_t>(found.size());
  constexpr int kHeight = 120;
  int64_t worst = 0;
  double when = 0, end = 0;
  for (const auto& [seconds, d] : found) {
    if (std::abs(d) > std::abs(worst)) {
      worst = d;
      when = seconds;
    }
    if (std::isfinite(seconds)) end = std::max(end, seconds);
  }
  if (end <= 0) end = 1;
  const std::string said = worst == 0
                               ? fmt::format("The difference is 0 bytes in all {} samples.", lines)
                               : fmt::format("The largest difference is {} than planned, after {}.",
                                             difference_text(worst), human_seconds(when));
  const auto range = static_cast<double>(std::max<int64_t>(4096, std::abs(worst))) * 1.25;
  const auto y = [&](int64_t d) { return kHeight / 2.0 * (1 - static_cast<double>(d) / range); };
  Plot plot(kHeight, "Measured less planned engine memory. " + said);
  const int64_t mark = std::max<int64_t>(4096, std::abs(worst));
  plot.y_tick(y(mark), "+" + byte_tick_text(mark));
  plot.y_tick(y(0), "0");
  plot.y_tick(y(-mark), "-" + byte_tick_text(mark));
  const std::vector<double> times = nice_ticks(0, end, 8);
  for (const double t : times) plot.x_tick(t / end, tick_text(t, times.size() > 1 ? times[1] : 1));
  plot.x_title("seconds since the start of training");
  std::string path;
  const size_t n = found.size(), stride = (n + 1999) / 2000;
  for (size_t i = 0; i < n; i += stride) {
    // The largest difference of those that share a point.
    auto p = found[i];
    for (size_t k = i; k < std::min(n, i + stride); ++k)
      if (std::abs(found[k].second) > std::abs(p.second)) p = found[k];
    if (!std::isfinite(p.first)) continue;
    path += fmt::format("{}{} {}", path.empty() ? "M" : "L",
                        coordinate(std::max(0.0, p.first) / end * Plot::kWidth),
                        coordinate(y(p.second)));
  }
  plot.shape(fmt::format("<path class=\"curve {}\" d=\"{}\"/>", worst == 0 ? "s2" : "s1", path));
  for (size_t i = 1; i < run.legs.size(); ++i)
    if (const double x = run.legs[i].seconds / end; x >= 0 && x <= 1)
      plot.shape(fmt::format("<line class=\"legline\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"{1}\"/>",
                             coordinate(x * Plot::kWidth), kHeight));
  const std::string planned =
      run.legs.size() > 1
          ? fmt::format("what the plan of their leg has ({} legs)", run.legs.size())
          : fmt::format("the planned {} bytes",
                        grouped(run.legs.empty() ? engine_bytes : run.legs.front().engine_bytes));
  return fmt::format(
             "<h2>Planned against measured</h2>\n<p class=\"sub\">Resident bytes of the arena, as "
             "the operating system counts them, less {}. {}</p>\n",
             planned, said) +
         plot.html();
}

std::string page_head(const std::string& title) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"generator\" content=\"Snug\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n";
  return out + fmt::format(
                   "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<main>\n"
                   "<h1>{0}</h1>\n",
                   escape_html(title), page_style());
}

std::string story_page(const ReportRun& run, const std::string& note) {
  return page_head(run.title) +
         fmt::format("<p class=\"lead\">{}</p>\n", escape_html(run.model_text)) + story_html(run) +
         measured_picture(run, -1) +
         fmt::format("<p class=\"note\">{}</p>\n</main>\n</body>\n</html>\n", escape_html(note));
}

}  // namespace snug
