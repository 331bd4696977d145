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
#include "tools/report/story.h"

namespace snug {
namespace {

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
                   fmt::format("planned = measured: {} bytes, difference 0 ({} of engine memory{})",
                               plan.engine_bytes, human_bytes(plan.engine_bytes),
                               run.legs.size() > 1 ? "; of the last leg" : ""));
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
  if (plan.disk.bytes > 0)
    row("disk", plan.disk.bytes,
        "the optimizer's state, in a file while the run lasts, exact; part of no other",
        run.disk_bytes);
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
      {"magnitudes", "norms of the rows that a new adapter scales"},
      {"micro_first", "forward and backward of a step's first micro-batch; writes the gradients"},
      {"micro_next", "the same for the others; adds to the gradients"},
      {"micro_only",
       "forward and backward of a step's only micro-batch; ranks sum its gradients meanwhile"},
      {"micro_last", "the same for the last one; ranks sum the gradients meanwhile"},
      {"update", "gradient norm, clipping, optimizer"},
      {"late", "an update by the host that was still to come, at the end"},
      {"to_kept", "the weights become those to evaluate and to save"},
      {"to_trained", "and again those that are trained"},
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

}  // namespace

namespace {

// What is drawn from the plan lies between them, and stays where a page is renewed without one.
constexpr std::string_view kPlanBegin = "<section id=\"plan\">\n", kPlanEnd = "</section>\n";
constexpr std::string_view kLeadBegin = "<p class=\"lead\">";

}  // namespace

std::string renewed_report(const std::string& page, const ReportRun& run) {
  const size_t lead = page.find(kLeadBegin), lead_end = page.find("</p>\n", lead);
  const size_t begin = page.find(kPlanBegin), end = page.find(kPlanEnd, begin);
  if (lead == std::string::npos || lead_end == std::string::npos || begin == std::string::npos ||
      end == std::string::npos)
    return "";
  const std::string title = run.title.empty() ? "A Snug run" : run.title;
  const std::string measured = measured_picture(run, -1);
  return page_head(title) + page.substr(lead, lead_end + 5 - lead) + story_html(run) +
         (measured.empty() ? "<h2>Memory</h2>\n" : measured) + page.substr(begin);
}

std::string report_html(const Plan& plan, const ReportRun& run) {
  std::string out = page_head(run.title.empty() ? "A Snug run" : run.title);
  out += fmt::format("{}{}{}</p>\n", kLeadBegin,
                     plan.model_text.empty() ? "" : escape_html(plan.model_text) + ". ",
                     escape_html(plan_sentence(plan)));
  const std::string story = story_html(run);
  const std::string measured = measured_picture(run, plan.engine_bytes);
  out += story + (measured.empty() && !story.empty() ? "<h2>Memory</h2>\n" : measured);
  out += kPlanBegin;
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
    out += tiers_picture(plan);
    out +=
        "<h2>Address map</h2>\n<p class=\"sub\">Where in the arena each tensor lies. Bare ground "
        "is unused at that moment. Point at a tensor, or focus the map and walk with the arrow "
        "keys, "
        "to read what it is, between which operations it lives and why it is there.</p>\n";
    out += address_picture(plan, view);
    out += lanes_picture(view);
  }
  if (plan.schedule.size() > 0) out += programs_table(plan, run.op_times);
  out += ladder_picture(run.ladder);
  out += kPlanEnd;
  out += fmt::format("</main>\n<footer>{}{} thread{}, planned in {:.3f} s.</footer>\n",
                     is_packed(plan.schedule) ? "Plan " + plan_hash(plan) + ", " : "", plan.threads,
                     plan.threads == 1 ? "" : "s", plan.seconds);
  if (!view.segments.empty()) out += fmt::format("<script>{}</script>\n", page_script());
  return out + "</body>\n</html>\n";
}

}  // namespace snug
