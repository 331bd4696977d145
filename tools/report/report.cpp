// The page: what it says in words and numbers, around the pictures.
#include "tools/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "engine/core/units.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"
#include "tools/report/plot.h"
#include "tools/report/step_view.h"

namespace snug {
namespace {

std::string verdict(const char* css, const char* mark, const std::string& html) {
  return fmt::format("<p class=\"verdict {}\"><b>{}</b> {}</p>\n", css, mark, html);
}

// "1234 bytes (1.21 KiB) more"
std::string difference_text(int64_t difference) {
  const int64_t size = difference < 0 ? -difference : difference;
  return fmt::format("{} bytes ({}) {}", size, human_bytes(size), difference < 0 ? "less" : "more");
}

std::string verdicts(const Plan& plan, const ReportRun& run) {
  std::string out;
  const int64_t total = plan.engine_bytes + plan.runtime_bytes;
  if (!plan.fits && (plan.budget == 0 || total <= plan.budget))
    out +=
        verdict("bad", "does not fit:",
                fmt::format("{} bytes ({}) are offloaded, for which the host's memory has no room",
                            plan.host_bytes, human_bytes(plan.host_bytes)));
  else if (!plan.fits)
    out += verdict(
        "bad", "does not fit:",
        fmt::format("the smallest plan needs {} bytes ({}), {} than the budget of {} bytes", total,
                    human_bytes(total), difference_text(total - plan.budget), plan.budget));
  if (run.measured_engine_bytes < 0) {
    out += verdict(
        "", "planned, not measured:",
        fmt::format("{} bytes ({}) of engine memory. This page was drawn from the plan alone",
                    plan.engine_bytes, human_bytes(plan.engine_bytes)));
  } else if (const int64_t d = run.measured_engine_bytes - plan.engine_bytes; d == 0) {
    out += verdict("good", "exact:",
                   fmt::format("planned = measured: {} bytes, difference 0 ({} of engine memory)",
                               plan.engine_bytes, human_bytes(plan.engine_bytes)));
  } else {
    out += verdict("bad", "not exact:",
                   fmt::format("planned {} bytes, measured {} bytes: {} than planned",
                               plan.engine_bytes, run.measured_engine_bytes, difference_text(d)));
  }
  if (run.allocations_after_start > 0)
    out += verdict("bad", "not flat:",
                   fmt::format("{} allocations after the start; none were planned",
                               run.allocations_after_start));
  if (run.measured_runtime_bytes > plan.runtime_bytes)
    out += verdict("bad", "runtime:",
                   fmt::format("measured {} bytes, {} than its allowance of {} bytes",
                               run.measured_runtime_bytes,
                               difference_text(run.measured_runtime_bytes - plan.runtime_bytes),
                               plan.runtime_bytes));
  if (!run.finished && !run.metrics.empty())
    out += verdict("", "unfinished:",
                   fmt::format("the last step written here is {}", run.metrics.back().step));
  return out;
}

std::string proof_sentence(const Packing& packing) {
  switch (packing.proof) {
    case PackProof::lower_bound:
      return "optimal: height equals the lower bound";
    case PackProof::exhausted:
      return "optimal: the search proved that no lower layout exists";
    case PackProof::none:
      break;
  }
  return fmt::format("open: {} bytes above the lower bound",
                     grouped(packing.height - packing.lower_bound));
}

std::string numbers_table(const Plan& plan, const ReportRun& run) {
  const bool measured = run.measured_engine_bytes >= 0 || run.measured_runtime_bytes >= 0;
  std::string out =
      "<div class=\"scroll\"><table><caption>Bytes of the plan</caption><thead><tr>"
      "<th scope=\"col\"></th><th scope=\"col\" class=\"num\">planned</th><th scope=\"col\"></th>";
  if (measured) out += "<th scope=\"col\" class=\"num\">measured</th>";
  out += "<th scope=\"col\">what it is</th></tr></thead><tbody>\n";
  const auto row = [&](const char* name, int64_t bytes, const char* what, int64_t seen = -1) {
    out += fmt::format(
        "<tr><th scope=\"row\">{}</th><td class=\"num\">{}</td><td class=\"num\">{}"
        "</td>",
        name, data_bytes(bytes), human_bytes(bytes));
    if (measured)
      out += fmt::format("<td class=\"num\">{}</td>", seen >= 0 ? data_bytes(seen) : "");
    out += fmt::format("<td>{}</td></tr>\n", what);
  };
  row("engine", plan.engine_bytes, "every tensor, workspace and staging buffer, exact",
      run.measured_engine_bytes);
  row("runtime", plan.runtime_bytes, "allowance for program, libraries, stacks and tokenizer",
      run.measured_runtime_bytes);
  row("total", plan.engine_bytes + plan.runtime_bytes, "engine and runtime");
  if (plan.host_bytes > 0)
    row("host", plan.host_bytes, "what is offloaded, in the host's memory, exact; part of no other",
        run.measured_host_bytes);
  if (plan.budget > 0) row("budget", plan.budget, "what the run was allowed");
  row("minimum", plan.minimum_bytes, "the smallest budget that works with these settings");
  if (plan.schedule.size() > 0) {
    row("lower bound", arena_lower_bound(plan), "no packing of these programs can be below it");
    row("padding", plan.padding, "rounding and unused bytes at the peak, part of engine");
  }
  out += "</tbody></table></div>\n";
  if (plan.schedule.size() > 0) {
    const Program& peak = plan.schedule.at(plan.schedule.peak_program());
    out += fmt::format("<p>Packing of {}, the program that sets the height: {}.</p>\n",
                       escape_html(peak.name.view()), proof_sentence(peak.packing));
  }
  if (run.allocations_after_start >= 0)
    out += fmt::format("<p>Allocations after the start: {}.</p>\n", run.allocations_after_start);
  return out;
}

// In words, for readers who see these names for the first time.
const char* program_text(std::string_view name) {
  static constexpr std::pair<std::string_view, const char*> kTexts[] = {
      {"root", "what stays for the whole run"},
      {"load", "weights made ready after they were read or drawn"},
      {"micro_first", "forward and backward of a step's first micro-batch; writes the gradients"},
      {"micro_next", "the same for the others; adds to the gradients"},
      {"update", "gradient norm, clipping, optimizer"},
      {"eval", "loss of a batch that is held out"},
      {"save", "weights to a model folder"},
      {"generate", "what stays while text is generated"},
      {"prefill", "a piece of a prompt"},
      {"decode", "one token of every text"},
      {"fork", "texts that go on from others"}};
  for (const auto& [known, text] : kTexts)
    if (known == name) return text;
  return "";
}

std::string programs_table(const Plan& plan, const StepTimes& times) {
  std::string out =
      "<h2>Programs</h2>\n<p class=\"sub\">Each is recorded once and run many times. Its tensors "
      "lie "
      "between its base and base + height of the arena.</p>\n<div "
      "class=\"scroll\"><table><thead><tr>"
      "<th scope=\"col\">program</th>";
  for (const char* name : {"base", "height", "lower bound", "tensors", "ops", "GFLOP", "GB moved"})
    out += fmt::format("<th scope=\"col\" class=\"num\">{}</th>", name);
  if (times.measured()) out += "<th scope=\"col\" class=\"num\">measured</th>";
  out += "<th scope=\"col\">what it does</th></tr></thead><tbody>\n";
  const auto measured = [&](int program) -> std::string {
    for (const auto& [index, seconds] : times.programs)
      if (index == program)
        return short_seconds(std::accumulate(seconds.begin(), seconds.end(), 0.0));
    return "";
  };
  for (int i = 0; i < plan.schedule.size(); ++i) {
    const Program& p = plan.schedule.at(i);
    out += fmt::format(
        "<tr><th scope=\"row\">{}{}</th><td class=\"num\">{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>"
        "<td class=\"num\">{:.3f}</td><td class=\"num\">{:.3f}</td>",
        escape_html(p.name.view()), p.resident ? " (resident)" : "", data_bytes(p.base),
        data_bytes(p.packing.height), data_bytes(p.packing.lower_bound), p.tensors.size(),
        p.ops.size(), static_cast<double>(p.flops()) / 1e9,
        static_cast<double>(p.bytes_moved()) / 1e9);
    if (times.measured()) out += fmt::format("<td class=\"num\">{}</td>", measured(i));
    out += fmt::format("<td>{}</td></tr>\n", program_text(p.name.view()));
  }
  return out + "</tbody></table></div>\n";
}

Series series_of(const ReportRun& run, const char* label, const char* css,
                 double ReportMetric::*field) {
  Series s{label, css, {}, false};
  for (const ReportMetric& m : run.metrics)
    s.points.emplace_back(static_cast<double>(m.step), m.*field);
  return s;
}

std::string curves(const ReportRun& run) {
  if (run.metrics.empty() && run.evals.empty()) return "";
  Series evals{"evaluation", "s1", {}, true};
  for (const ReportEval& e : run.evals)
    evals.points.emplace_back(static_cast<double>(e.step), e.loss);
  std::string out = "<h2>Learning</h2>\n";
  out += line_chart("Loss", "step", {series_of(run, "training", "s0", &ReportMetric::loss), evals},
                    false, 280);
  if (run.metrics.empty()) return out;
  out += "<div class=\"small\">\n";
  out +=
      line_chart("Tokens per second", "step",
                 {series_of(run, "tokens/s", "s2", &ReportMetric::tokens_per_second)}, true, 150);
  out += line_chart("Gradient norm", "step",
                    {series_of(run, "gradient norm", "s3", &ReportMetric::grad_norm)}, true, 150);
  out +=
      line_chart("Learning rate", "step",
                 {series_of(run, "learning rate", "s0", &ReportMetric::learning_rate)}, true, 150);
  const ReportMetric& last = run.metrics.back();
  return out + fmt::format(
                   "</div>\n<p>Last step {}: loss {:.4f}, {:.0f} tokens/s, {} of "
                   "training.</p>\n",
                   last.step, last.loss, last.tokens_per_second, human_seconds(last.seconds));
}

}  // namespace

std::string measured_picture(const Plan& plan, const ReportRun& run) {
  if (run.memory_samples.empty()) return "";
  constexpr int kHeight = 120;
  int64_t worst = 0;
  double when = 0, end = 0;
  for (const auto& [seconds, bytes] : run.memory_samples) {
    const int64_t d = bytes - plan.engine_bytes;
    if (std::abs(d) > std::abs(worst)) {
      worst = d;
      when = seconds;
    }
    if (std::isfinite(seconds)) end = std::max(end, seconds);
  }
  if (end <= 0) end = 1;
  const std::string said =
      worst == 0
          ? fmt::format("The difference is 0 bytes in all {} samples.", run.memory_samples.size())
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
  const size_t n = run.memory_samples.size(), stride = (n + 1999) / 2000;
  for (size_t i = 0; i < n; i += stride) {
    // The largest difference of those that share a point.
    auto p = run.memory_samples[i];
    for (size_t k = i; k < std::min(n, i + stride); ++k)
      if (std::abs(run.memory_samples[k].second - plan.engine_bytes) >
          std::abs(p.second - plan.engine_bytes))
        p = run.memory_samples[k];
    if (!std::isfinite(p.first)) continue;
    path += fmt::format("{}{} {}", path.empty() ? "M" : "L",
                        coordinate(std::max(0.0, p.first) / end * Plot::kWidth),
                        coordinate(y(p.second - plan.engine_bytes)));
  }
  plot.shape(fmt::format("<path class=\"curve {}\" d=\"{}\"/>", worst == 0 ? "s2" : "s1", path));
  return fmt::format(
             "<h2>Planned against measured</h2>\n<p class=\"sub\">Resident bytes of the arena, as "
             "the "
             "operating system counts them, less the planned {} bytes. {}</p>\n",
             grouped(plan.engine_bytes), said) +
         plot.html();
}

std::string report_html(const Plan& plan, const ReportRun& run) {
  const std::string title = escape_html(run.title.empty() ? "A Snug run" : run.title);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"generator\" content=\"Snug\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n";
  out += fmt::format("<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n", title,
                     page_style());
  out += fmt::format("<h1>{}</h1>\n<p class=\"lead\">{}{}</p>\n", title,
                     plan.model_text.empty() ? "" : escape_html(plan.model_text) + ". ",
                     escape_html(plan_sentence(plan)));
  out += verdicts(plan, run) + numbers_table(plan, run);

  const StepView view = make_step_view(plan, kPictureColumns, run.op_times);
  if (!view.segments.empty()) {
    out +=
        "<h2>Memory over one step</h2>\n<p class=\"sub\">What is alive at every moment, by "
        "meaning. Residents, which outlive the step, lie at the bottom; shades of one colour are "
        "groups of layers. micro_first and micro_next are forward and backward of a micro-batch, "
        "update "
        "is the optimizer. Point at a moment, or focus the picture and use the arrow keys, to read "
        "its bytes.</p>\n";
    out += memory_picture(plan, view);
    out +=
        "<h2>Address map</h2>\n<p class=\"sub\">Where in the arena each tensor lies. Bare ground "
        "is unused at that moment. Point at a tensor, or focus the map and walk with the arrow "
        "keys, "
        "to read what it is, between which operations it lives and why it is there.</p>\n";
    out += address_picture(plan, view);
    out += lanes_picture(view);
  }
  out += ladder_picture(run.ladder);
  out += curves(run) + measured_picture(plan, run);
  if (plan.schedule.size() > 0) out += programs_table(plan, run.op_times);
  if (!run.sample_text.empty())
    out += fmt::format(
        "<h2>Sample</h2>\n<p class=\"sub\">Text written by the model.</p>\n"
        "<pre>{}</pre>\n",
        escape_html(run.sample_text));
  out += fmt::format("</main>\n<footer>{}{} thread{}, planned in {:.3f} s.</footer>\n",
                     is_packed(plan.schedule) ? "Plan " + plan_hash(plan) + ", " : "", plan.threads,
                     plan.threads == 1 ? "" : "s", plan.seconds);
  if (!view.segments.empty()) out += fmt::format("<script>{}</script>\n", page_script());
  return out + "</body>\n</html>\n";
}

}  // namespace snug
