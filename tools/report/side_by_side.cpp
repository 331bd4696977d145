#include "tools/report/side_by_side.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/story.h"

namespace snug {
namespace {

const std::string* value_of(const ComparedRun& run, const std::string& key) {
  for (const auto& [k, v] : run.keys)
    if (k == key) return &v;
  return nullptr;
}

// Four colours, then the same ones dashed.
std::string curve_class(size_t i) {
  std::string css = fmt::format("s{}", i % 4);
  if (i >= 4) css += fmt::format(" d{}", std::min<size_t>(3, i / 4));
  return css;
}

std::string runs_table(const std::vector<ComparedRun>& runs) {
  std::string out = "<div class=\"scroll\"><table><caption>The runs</caption><thead><tr>";
  for (const char* name : {"run", "model", "steps", "state", "last loss", "best validation",
                           "at step", "tokens/s", "training", "engine memory", "machine"})
    out += fmt::format("<th scope=\"col\">{}</th>", name);
  out += "</tr></thead><tbody>\n";
  for (const ComparedRun& c : runs) {
    const ReportRun& r = c.run;
    const bool some = !r.metrics.empty();
    const ReportMetric last = some ? r.metrics.back() : ReportMetric{};
    out += fmt::format("<tr><th scope=\"row\">{}</th><td style=\"min-width:170px\">{}</td>",
                       escape_html(r.title), escape_html(r.model_text));
    const auto cell = [&](const std::string& text) {
      out += fmt::format("<td class=\"num\">{}</td>", escape_html(text));
    };
    cell(some ? std::to_string(last.step) : "");
    cell(r.finished ? "finished" : r.failure.empty() ? "unfinished" : "failed: " + r.failure);
    cell(some && std::isfinite(last.loss) ? fmt::format("{:.4f}", last.loss) : "");
    cell(r.best_step >= 0 ? fmt::format("{:.4f}{}", r.best_value,
                                        r.best_by == "eval_loss" ? "" : " " + r.best_by)
                          : "");
    cell(r.best_step >= 0 ? std::to_string(r.best_step) : "");
    cell(some && std::isfinite(last.tokens_per_second)
             ? fmt::format("{:.0f}", last.tokens_per_second)
             : "");
    cell(some && std::isfinite(last.seconds) ? human_seconds(last.seconds) : "");
    cell(!r.memory_samples.empty() ? human_bytes(r.memory_samples.back().second) : "");
    out += fmt::format("<td class=\"words\">{}</td></tr>\n",
                       escape_html(r.legs.empty() ? "" : r.legs.back().machine));
  }
  return out + "</tbody></table></div>\n";
}

std::string differences_table(const std::vector<ComparedRun>& runs) {
  const std::vector<ConfigDifference> list = config_differences(runs);
  std::string out = "<h2>Configurations</h2>\n";
  if (list.empty()) return out + "<p>They say the same, but for the folder.</p>\n";
  out +=
      "<div class=\"scroll\"><table><caption>What is not the same in all</caption><thead><tr>"
      "<th scope=\"col\">key</th>";
  for (const ComparedRun& r : runs)
    out += fmt::format("<th scope=\"col\">{}</th>", escape_html(r.run.title));
  out += "</tr></thead><tbody>\n";
  for (const ConfigDifference& d : list) {
    out += fmt::format("<tr><th scope=\"row\">{}</th>", escape_html(d.key));
    for (const std::string& v : d.values) out += fmt::format("<td>{}</td>", escape_html(v));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

std::vector<ConfigDifference> config_differences(const std::vector<ComparedRun>& runs) {
  std::vector<ConfigDifference> out;
  std::vector<std::string> seen = {"output_dir"};
  for (const ComparedRun& first : runs)
    for (const auto& [key, value] : first.keys) {
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) continue;
      seen.push_back(key);
      ConfigDifference d{key, {}};
      bool same = true;
      for (const ComparedRun& r : runs) {
        const std::string* v = value_of(r, key);
        d.values.push_back(v ? *v : "");
        same = same && d.values.back() == d.values.front();
      }
      if (!same) out.push_back(std::move(d));
    }
  return out;
}

std::string side_by_side_html(const std::vector<ComparedRun>& runs) {
  std::string out = page_head(fmt::format("{} runs", runs.size())) + runs_table(runs);
  std::vector<Series> evals, losses, by_time, rates;
  for (size_t i = 0; i < runs.size(); ++i) {
    const ReportRun& r = runs[i].run;
    const std::string css = curve_class(i);
    Series eval{r.title, css, {}, true};
    for (const ReportEval& e : r.evals)
      eval.points.emplace_back(static_cast<double>(e.step), e.loss);
    evals.push_back(std::move(eval));
    losses.push_back(series_of(r, r.title, css, &ReportMetric::loss));
    Series time{r.title, css, {}, false};
    for (const ReportMetric& m : r.metrics)
      if (std::isfinite(m.seconds)) time.points.emplace_back(m.seconds, m.loss);
    by_time.push_back(std::move(time));
    rates.push_back(series_of(r, r.title, css, &ReportMetric::tokens_per_second));
  }
  out += "<h2>Learning</h2>\n";
  out += line_chart("Validation loss", "step", evals, false, 260);
  out += line_chart("Training loss", "step", losses, false, 260);
  out += line_chart("Training loss", "seconds of training", by_time, false, 260);
  out += line_chart("Tokens per second", "step", rates, true, 160);
  return out + differences_table(runs) + "</main>\n</body>\n</html>\n";
}

}  // namespace snug
