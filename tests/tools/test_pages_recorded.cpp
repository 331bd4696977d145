// The pages and pictures of runs made up by hand, as they were when somebody last looked at them: of each piece
// its beginning, length and sum. What they should say the other tests of reports ask; here no mark moves
// unseen. SNUG_RECORD=1 writes recorded_pages.txt anew: open the pages that it leaves in the temporary folder first.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "engine/io/fingerprint.h"
#include "tests/support/folders.h"
#include "tests/tools/test_report_schedule.h"
#include "tools/report/report.h"
#include "tools/report/side_by_side.h"
#include "tools/report/trace.h"

namespace snug {
namespace {

ReportRun whole_run(const Plan& plan, double above) {
  ReportRun run;
  run.title = "a run & its <name>";
  for (int i = 0; i < 70; ++i) {
    const double gap = i == 30 ? std::nan("") : 0;
    run.metrics.push_back({i * 10, above + 6 / (1.0 + 0.05 * i) + gap, 1e-3 * (1 - i / 80.0),
                           1.5 + 0.01 * i, 1000.0 + 7 * i, 0.5 * i});
    run.memory_samples.emplace_back(0.5 * i, plan.engine_bytes - (i % 7 == 3 ? 4096 : 0));
  }
  run.evals = {{0, above + 6.5}, {300, above + 3.25}, {600, above + 3.5}};
  run.measured_engine_bytes = plan.engine_bytes;
  run.measured_host_bytes = plan.host_bytes;
  run.measured_runtime_bytes = plan.runtime_bytes + 12345;
  run.allocations_after_start = 0;
  run.samples = {{0, "To be"}, {300, "To be\nor <not>"}};
  run.legs = {{.engine_bytes = plan.engine_bytes - 4096,
               .budget = int64_t{100} << 20,
               .machine = "first machine",
               .when = "2026-01-02 03:04",
               .sentence = "All is kept.",
               .samples = 300},
              {.from_step = 300,
               .step = 310,
               .seconds = 15.5,
               .engine_bytes = plan.engine_bytes,
               .budget = plan.budget,
               .predicted_tokens_per_second = 1234,
               .machine = "second machine",
               .when = "2026-01-03 03:04",
               .sentence = "Some is recomputed.",
               .samples = 390}};
  run.ladder = {{plan.budget / 4, plan.engine_bytes / 4, 1, "block", 400, "A small rung.", false},
                {plan.budget / 2, plan.engine_bytes / 2, 2, "norms", 700, "A rung.", false},
                {plan.budget, plan.engine_bytes, 4, "none", 900, "The rung of this.", true}};
  run.written = "2026-01-03 04:05";
  run.best_step = 300;
  run.best_value = above + 3.25;
  run.final_step = 300;
  run.total_steps = 690;
  run.finished = true;
  return run;
}

struct Page {
  const char* name;
  std::string text;
};

std::vector<Page> pages() {
  const Plan plan = hand_plan();
  const ReportRun run = whole_run(plan, 1);
  ReportRun broken = run;
  broken.finished = false;
  broken.failure = "the loss is not finite";
  broken.total_steps = 2000;
  std::vector<ComparedRun> runs(3);
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].run = whole_run(plan, 1 + 0.5 * static_cast<double>(i));
    runs[i].run.title = fmt::format("run{}", i);
    runs[i].keys = {{"seed", "1"}, {"learning_rate", fmt::format("{}e-4", i)}};
  }
  runs[1].keys.emplace_back("peft", "lora");
  return {{"run", report_html(plan, run)},
          {"broken", report_html(plan, broken)},
          {"plan", report_html(plan, ReportRun{})},
          {"renewed", renewed_report(report_html(plan, broken), run)},
          {"runs", side_by_side_html(runs)},
          {"timeline", timeline_text(plan)},
          {"timeline, narrow, of plain characters", timeline_text(plan, Glyphs::ascii, 56)},
          {"trace", trace_text(plan, predicted_trace(plan))}};
}

// Where a piece begins: at what a reader would name, or every so many bytes of what has no such marks.
constexpr const char* kMarks[] = {"<h2",     "<h3", "<svg",   "<table", "<figure",
                                  "<script", "<p",  "<style", "<path"};
std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  size_t begin = 0;
  for (size_t at = 1; at <= text.size(); ++at) {
    const std::string_view rest = std::string_view(text).substr(at);
    const bool marked = std::any_of(std::begin(kMarks), std::end(kMarks),
                                    [&](const char* mark) { return rest.starts_with(mark); });
    if (at < text.size() && !marked && at - begin < 6000) continue;
    pieces.push_back(text.substr(begin, at - begin));
    begin = at;
  }
  return pieces;
}

std::string line_of(const std::string& piece) {
  std::string first = piece.substr(0, 60);
  std::replace(first.begin(), first.end(), '\n', ' ');
  while (!first.empty() && static_cast<unsigned char>(first.back()) >= 0x80) first.pop_back();
  return fmt::format("{} {} {}", piece.size(), fingerprint_text(fingerprint(piece)), first);
}

TEST(RecordedPages, AreAsTheyWere) {
  const std::string file = source_folder() + "/tests/tools/recorded_pages.txt";
  const std::string hash = plan_hash(hand_plan());
  std::vector<std::string> lines, texts;
  for (const Page& page : pages()) {
    lines.push_back(fmt::format("== {}", page.name));
    texts.emplace_back();
    std::string text = page.text;  // a hash, which every new decision changes, is no news
    for (size_t at = text.find(hash); at != std::string::npos; at = text.find(hash, at))
      text.replace(at, hash.size(), "(hash)");
    for (const std::string& piece : pieces_of(text)) {
      lines.push_back(line_of(piece));
      texts.push_back(piece);
    }
  }
  if (std::getenv("SNUG_RECORD") != nullptr) {
    std::ofstream out(file);
    for (const std::string& line : lines) out << line << "\n";
    for (const Page& page : pages())
      std::ofstream(std::filesystem::temp_directory_path() / fmt::format("snug-{}.html", page.name))
          << page.text;
    return;
  }
  std::ifstream in(file);
  size_t at = 0;
  for (std::string line; std::getline(in, line); ++at) {
    ASSERT_LT(at, lines.size()) << "gone: " << line;
    ASSERT_EQ(lines[at], line) << "it is now: " << texts[at].substr(0, 2000)
                               << "\nSNUG_RECORD=1 records what it is";
  }
  EXPECT_EQ(at, lines.size()) << "more: " << lines.at(std::min(at, lines.size() - 1));
}

}  // namespace
}  // namespace snug
