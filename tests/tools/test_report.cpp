// The report is well formed, says the plan's numbers and nothing else, and survives any text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/core/units.h"
#include "tests/tools/markup_fault.h"
#include "tests/tools/test_report_schedule.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"
#include "tools/report/report.h"
#include "tools/report/side_by_side.h"

namespace snug {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

ReportRun some_run(const Plan& plan) {
  ReportRun run;
  run.title = "a run";
  for (int i = 0; i < 50; ++i) {
    run.metrics.push_back({i * 10, 8 - 0.1 * i, 1e-3, 1.5, 1000.0 + i, 0.5 * i});
    run.memory_samples.emplace_back(0.5 * i, plan.engine_bytes);
  }
  run.evals = {{100, 7.5}, {400, 4.25}};
  run.measured_engine_bytes = plan.engine_bytes;
  run.measured_runtime_bytes = plan.runtime_bytes - 1;
  run.allocations_after_start = 0;
  run.samples = {{100, "To be"}, {400, "To be\nor not"}};
  run.finished = true;
  return run;
}

nlohmann::json step_data(const std::string& html) {
  const std::string mark = "id=\"step\">";
  const size_t at = html.find(mark) + mark.size();
  return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at));
}

TEST(ReportChecker, SeesFaults) {
  const std::string d = "<!DOCTYPE html>\n";
  EXPECT_EQ(markup_fault(d + "<p class=\"a\">x<br/>&amp;</p>"), "");
  for (const char* bad :
       {"<p>", "</p>", "<p><b></p></b>", "a < b", "a & b", "<p a=b></p>", "<p a=\"1\" a=\"2\"></p>",
        "<p id=\"i\"></p><p id=\"i\"></p>", "a > b", "<p a=\"<\"></p>", "<script>"})
    EXPECT_NE(markup_fault(d + bad), "") << bad;
}

TEST(Report, IsWellFormed) {
  const Plan plan = hand_plan();
  EXPECT_EQ(markup_fault(report_html(plan, some_run(plan))), "");
  EXPECT_EQ(markup_fault(report_html(plan, ReportRun{})), "");
}

TEST(Report, IsSelfContained) {
  const Plan plan = hand_plan();
  const std::string html = report_html(plan, some_run(plan));
  for (const char* part : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch("})
    EXPECT_FALSE(has(html, part)) << part;
  EXPECT_TRUE(has(html, "default-src 'none'"));
}

TEST(Report, SaysThePlansNumbers) {
  const Plan plan = hand_plan();
  const std::string html = report_html(plan, some_run(plan));
  EXPECT_TRUE(has(html, plan_sentence(plan)));
  EXPECT_TRUE(has(html, plan_hash(plan)));
  const Program& peak = plan.schedule.at(plan.schedule.peak_program());
  for (const int64_t bytes :
       {plan.engine_bytes, plan.runtime_bytes, plan.engine_bytes + plan.runtime_bytes, plan.budget,
        plan.minimum_bytes, peak.base + peak.packing.lower_bound, plan.padding})
    EXPECT_TRUE(has(html, data_bytes(bytes))) << bytes;
  EXPECT_TRUE(has(html, "optimal: height equals the lower bound"));
  for (int i = 0; i < plan.schedule.size(); ++i) {
    const Program& p = plan.schedule.at(i);
    EXPECT_TRUE(has(html, fmt::format("<td class=\"num\">{}</td><td class=\"num\">{}</td>"
                                      "<td class=\"num\">{}</td><td class=\"num\">{}</td>"
                                      "<td class=\"num\">{}</td><td class=\"num\">{:.3f}</td>",
                                      data_bytes(p.base), data_bytes(p.packing.height),
                                      data_bytes(p.packing.lower_bound), p.tensors.size(),
                                      p.ops.size(), static_cast<double>(p.flops()) / 1e9)))
        << p.name.view();
  }
}

TEST(Report, GapOfThePackingIsSaid) {
  Plan plan = hand_plan();
  Program& peak = plan.schedule.at(plan.schedule.peak_program());
  peak.packing.lower_bound -= 409600;
  peak.packing.proof = PackProof::none;
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_TRUE(has(html, "open: 409,600 bytes above the lower bound"));
  EXPECT_TRUE(has(html, ">lower bound " + human_bytes(peak.base + peak.packing.lower_bound)));
  EXPECT_FALSE(has(html, "equal to the lower bound"));
}

TEST(Report, VerdictBeforeTheRun) {
  const Plan plan = hand_plan();
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_TRUE(has(html, "planned, not measured:"));
  for (const char* part : {"planned = measured", "Learning", "Planned against measured", "Samples",
                           "unfinished", "Allocations after"})
    EXPECT_FALSE(has(html, part)) << part;
}

TEST(Report, VerdictAfterTheRun) {
  const Plan plan = hand_plan();
  const std::string html = report_html(plan, some_run(plan));
  EXPECT_TRUE(
      has(html, fmt::format("planned = measured: {} bytes, difference 0", plan.engine_bytes)));
  EXPECT_TRUE(has(html, "The difference is 0 bytes in all 50 samples."));
  EXPECT_TRUE(has(html, "Allocations after the start: 0."));
  EXPECT_FALSE(has(html, "verdict bad"));
  EXPECT_FALSE(has(html, "unfinished:"));
}

TEST(Report, DifferencesAreSaid) {
  const Plan plan = hand_plan();
  ReportRun run = some_run(plan);
  run.measured_engine_bytes += 8192;
  run.memory_samples[7].second -= 4096;
  run.allocations_after_start = 3;
  run.measured_runtime_bytes = plan.runtime_bytes + 100;
  run.finished = false;
  const std::string html = report_html(plan, run);
  EXPECT_FALSE(has(html, "planned = measured"));
  EXPECT_TRUE(
      has(html, fmt::format("planned {} bytes, measured {} bytes: 8192 bytes (8.00 KiB) more "
                            "than planned",
                            plan.engine_bytes, plan.engine_bytes + 8192)));
  EXPECT_TRUE(has(html, "3 allocations after the start; none were planned"));
  EXPECT_TRUE(has(html, fmt::format("measured {} bytes, 100 bytes (100 B) more than its allowance "
                                    "of {} bytes",
                                    plan.runtime_bytes + 100, plan.runtime_bytes)));
  EXPECT_TRUE(
      has(html, "The largest difference is 4096 bytes (4.00 KiB) less than planned, after"));
  EXPECT_TRUE(has(html, "the last step written here is 490"));
  run.measured_engine_bytes = plan.engine_bytes - 1;
  EXPECT_TRUE(has(report_html(plan, run), "1 bytes (1 B) less than planned"));
}

// Each leg is measured against its own plan, whatever the last one has.
TEST(Report, LegsHaveTheirOwnPlans) {
  const Plan plan = hand_plan();
  ReportRun run = some_run(plan);
  const int64_t before = plan.engine_bytes + (int64_t{7} << 19);
  for (size_t i = 0; i < 20; ++i) run.memory_samples[i].second = before;
  EXPECT_TRUE(has(report_html(plan, run), "3670016 bytes (3.50 MiB) more than planned"));
  run.legs = {{.engine_bytes = before, .budget = int64_t{100} << 20, .machine = "first machine"},
              {.from_step = 200, .step = 200, .seconds = 10, .engine_bytes = plan.engine_bytes}};
  run.best_step = 400;
  run.best_value = 4.25;
  run.final_step = 490;
  std::string html = report_html(plan, run);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_TRUE(has(html, "The difference is 0 bytes in all 50 samples."));
  EXPECT_FALSE(has(html, "more than planned"));
  EXPECT_TRUE(has(html, "what the plan of their leg has (2 legs)"));
  EXPECT_TRUE(has(html, data_bytes(before)));
  EXPECT_TRUE(has(html, "first machine"));
  EXPECT_TRUE(has(html, "went on from a checkpoint"));
  EXPECT_EQ(count(html, "class=\"legline\""), 5u) << "in the loss, three curves and the memory";
  EXPECT_TRUE(has(html,
                  "Best: validation loss 4.2500 at step 400. <code>final/</code> holds the "
                  "weights of step 490, not the best ones."));
  EXPECT_EQ(count(html, "class=\"ring\""), 1u);
  // The start is no step: as the best it has no ring.
  ReportRun start = run;
  start.best_step = 0;
  start.evals.insert(start.evals.begin(), ReportEval{0, 4.0});
  EXPECT_EQ(count(report_html(plan, start), "class=\"ring\""), 0u);
  run.memory_samples[3].second += 4096;
  EXPECT_TRUE(has(report_html(plan, run), "4096 bytes (4.00 KiB) more than planned, after"));
  run.memory_samples[3].second -= 4096;  // of a long run some lines are left out, but counted
  run.legs[0].samples = 21000;
  EXPECT_TRUE(has(report_html(plan, run), "The difference is 0 bytes in all 21000 samples."));
  // Of a leg whose log does not say its plan nothing is claimed.
  run.legs[0].engine_bytes = -1;
  html = report_html(plan, run);
  EXPECT_TRUE(has(html, "The difference is 0 bytes in all 30 samples."));
  EXPECT_TRUE(has(html, "not logged"));
}

TEST(Report, OrderIsLearningMemoryLadder) {
  const Plan plan = hand_plan();
  ReportRun run = some_run(plan);
  run.legs = {{.engine_bytes = plan.engine_bytes, .machine = "a machine"}};
  run.ladder = {{plan.budget, plan.engine_bytes, 1, "none", 900, "A rung.", true}};
  const std::string html = report_html(plan, run);
  size_t at = 0;
  for (const char* part : {"a machine", "<h2>Learning", "<h2>Samples", "<h2>Planned against",
                           "planned = measured", "<h2>Memory over", "<h2>Programs", "ladder"}) {
    const size_t found = html.find(part, at);
    EXPECT_NE(found, std::string::npos) << part;
    at = std::min(found, html.size());
  }
}

// A page drawn anew says what is now so and keeps what the plan had drawn.
TEST(Report, IsRenewedWithoutThePlan) {
  const Plan plan = hand_plan();
  ReportRun run = some_run(plan);
  run.finished = false;
  const std::string before = report_html(plan, run);
  run.metrics.push_back({500, 2.5, 1e-3, 1.5, 1000, 30});
  run.finished = true;
  run.legs = {{.engine_bytes = plan.engine_bytes, .machine = "a machine"}};
  const std::string after = renewed_report(before, run);
  EXPECT_EQ(markup_fault(after), "");
  EXPECT_EQ(after, report_html(plan, run));
  EXPECT_EQ(renewed_report("<p>no page</p>", run), "");
}

TEST(Report, RunsLieSideBySide) {
  const Plan plan = hand_plan(1);
  std::vector<ComparedRun> runs(10);
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].run = some_run(plan);
    runs[i].run.title = fmt::format("run{}<", i);
    runs[i].run.best_step = 400;
    runs[i].run.best_value = 4.25;
    runs[i].keys = {{"seed", "42"},
                    {"output_dir", std::to_string(i)},
                    {"learning_rate", i == 3 ? "0.001" : "0.0006"}};
  }
  runs[7].keys.emplace_back("model.n_layer", "6");
  const std::vector<ConfigDifference> list = config_differences(runs);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].key, "learning_rate");
  EXPECT_EQ(list[0].values[3], "0.001");
  EXPECT_EQ(list[1].key, "model.n_layer");
  EXPECT_EQ(list[1].values[7] + list[1].values[0], "6");
  const std::string html = side_by_side_html(runs);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_TRUE(has(html, "run9&lt;"));
  EXPECT_EQ(count(html, "class=\"curve s1 d2\""), 4u) << "the tenth, in each of four charts";
  runs.resize(2);
  EXPECT_TRUE(has(side_by_side_html(runs), "They say the same, but for the folder."));
}

// Of many the largest, whichever way it goes, and the moment it was there; of samples that share a
// point of the curve the same: of 4001 three do, and the largest lies in the middle of its three.
TEST(Report, TheLargestOfManyDifferencesIsSaidAndDrawn) {
  const Plan plan = hand_plan();
  for (const int sign : {1, -1}) {
    ReportRun run = some_run(plan);
    run.memory_samples.assign(4001, {0.0, plan.engine_bytes + sign * 4096});
    for (size_t i = 0; i < run.memory_samples.size(); ++i)
      run.memory_samples[i].first = 0.5 * static_cast<double>(i);
    run.memory_samples[1201].second = plan.engine_bytes + sign * 12288;
    run.memory_samples[1202].second = plan.engine_bytes - sign * 8192;
    run.memory_samples[3000].second = plan.engine_bytes;
    const std::string html = report_html(plan, run);
    EXPECT_TRUE(has(html, fmt::format("The largest difference is 12288 bytes (12.00 KiB) {} than "
                                      "planned, after {}.",
                                      sign > 0 ? "more" : "less", human_seconds(600.5))));
    // 60 units are 1.25 times the largest.
    EXPECT_TRUE(has(html, fmt::format(" {}L", sign > 0 ? 12 : 108)));
    EXPECT_TRUE(has(html, fmt::format(" {}L", sign > 0 ? 44 : 76))) << "the others";
  }
}

TEST(Report, InfeasiblePlanIsSaid) {
  Plan plan = hand_plan();
  plan.fits = false;
  plan.budget = plan.engine_bytes;
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_TRUE(has(html, fmt::format("the smallest plan needs {} bytes",
                                    plan.engine_bytes + plan.runtime_bytes)));
  EXPECT_TRUE(has(html, fmt::format("more than the budget of {} bytes", plan.budget)));
  plan.budget = plan.runtime_bytes / 2;
  EXPECT_TRUE(has(report_html(plan, ReportRun{}), "runtime alone is larger than the budget"));
}

TEST(Report, BudgetFarAboveIsANote) {
  Plan plan = hand_plan();
  EXPECT_TRUE(has(report_html(plan, ReportRun{}), "level budget"));
  plan.budget = 100 * plan.engine_bytes;
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_FALSE(has(html, "level budget"));
  EXPECT_TRUE(
      has(html, human_bytes(plan.budget - plan.runtime_bytes) + ", lies above the picture"));
  plan.budget = 0;
  EXPECT_FALSE(has(report_html(plan, ReportRun{}), "udget less"));
}

TEST(Report, TextFromOutsideIsEscaped) {
  const std::string evil = "</script><script>alert(1)</script>\"'&<b>\xff\x01";
  Plan plan = hand_plan(2);
  plan.model_text = evil;
  for (int i = 0; i < plan.schedule.size(); ++i) {
    Program& p = plan.schedule.at(i);
    for (TensorRecord& t : p.tensors) t.name = t.scope = Name(evil);
    for (OpRecord& op : p.ops) {
      op.name = "</title><i>";
      op.scope = Name(evil);
    }
  }
  ReportRun run = some_run(plan);
  run.title = run.model_text = run.written = evil;
  run.samples = {{1, evil}};
  run.legs = {{.machine = evil, .when = evil, .sentence = evil}};
  const std::string html = report_html(plan, run);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_FALSE(has(html, "<script>alert"));
  EXPECT_FALSE(has(html, "<b>\xff"));
  EXPECT_FALSE(has(html, "<i>"));
  EXPECT_EQ(count(html, "<script"), 2u);
  EXPECT_EQ(count(html, "</script"), 2u);
  EXPECT_FALSE(has(html, "\xff"));
  EXPECT_FALSE(has(html, "\x01"));
  EXPECT_TRUE(has(step_data(html)["names"][0].get<std::string>(), "</title><i>"));
}

TEST(Report, EmptyAndOddMeasurements) {
  const Plan plan = hand_plan(2);
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  ReportRun run;
  run.evals = {{5, 3.0}};
  EXPECT_EQ(markup_fault(report_html(plan, run)), "");
  run.evals = {{5, nan}};
  run.metrics = {{1, nan, inf, -inf, nan, nan}};
  run.memory_samples = {{nan, 5}, {inf, INT64_MAX / 2}, {-1, 0}};
  std::string html = report_html(plan, run);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_TRUE(has(html, "Nothing measured."));
  run.metrics = {{1, 2.0, 0, 0, 0, 0}, {2, nan, 0, 0, 0, 0}, {3, 2.0, 0, 0, 0, 0}};
  html = report_html(plan, run);
  EXPECT_EQ(markup_fault(html), "");
  for (const char* part : {"\"nan", "nanpx", "nan%", " nan", "inf%", "infpx", "Hnan", "Lnan"})
    EXPECT_FALSE(has(html, part)) << part;
  // What spans more than a double.
  run.metrics = {{1, -1e308, -1e308, 1e308, 0, 0}, {2, 1.7e308, 1e308, -1e308, 0, 0}};
  run.evals = {{1, -1.7e308}, {2, 1e308}};
  html = report_html(plan, run);
  EXPECT_EQ(markup_fault(html), "");
  for (const char* part :
       {"nan ", " nan", "nan\"", "nan%", "nanpx", "inf ", " inf", "infpx", "inf%"})
    EXPECT_FALSE(has(html, part)) << part;
}

TEST(Report, EmptyAndUnpackedSchedules) {
  Plan plan;
  EXPECT_EQ(markup_fault(report_html(plan, ReportRun{})), "");
  EXPECT_EQ(timeline_text(plan), "");
  HandRecorder(plan.schedule, "root", -1, true).make("weights", "", Category::weights, 1024);
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_TRUE(has(html, "the schedule is not packed"));
  plan.schedule.pack();
  EXPECT_FALSE(has(report_html(plan, ReportRun{}), "the schedule is not packed"));
}

TEST(Report, StaysSmallForDeepModels) {
  const Plan plan = hand_plan(48);
  ReportRun run = some_run(plan);
  for (int i = 0; i < 200000; ++i) {
    run.metrics.push_back(
        {500 + i, 3.0 + 0.001 * (i % 97), 1e-3, 1.0 + i % 7, 1e3 + i % 11, 1.0 * i});
    run.memory_samples.emplace_back(25.0 + i, plan.engine_bytes);
  }
  const std::string html = report_html(plan, run);
  EXPECT_LT(html.size(), size_t{2} << 20);
  EXPECT_EQ(markup_fault(html), "");
}

TEST(Report, ManyTensorsAreMerged) {
  Plan plan;
  Schedule& s = plan.schedule;
  HandRecorder(s, "root", -1, true).make("weights", "", Category::weights, 1 << 20);
  {
    HandRecorder r(s, "micro_first", 0, false);
    std::vector<size_t> made;
    for (int i = 0; i < 8000; ++i) {
      made.push_back(r.make(std::string(500, 'n'), "", Category::activations, 256));
      r.op("op", "", 1000000, 1000);
    }
    for (const size_t t : made) r.end(t);
  }
  s.pack();
  plan.engine_bytes = s.arena_bytes();
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_LT(html.size(), size_t{2} << 20);
  EXPECT_TRUE(has(html, "8000 of 8001 tensors are too small to see"));
  EXPECT_GT(count(html, "<rect class=\"c7\""), 50u);  // their area is still painted
}

TEST(Report, ReadoutAndDataAreTheSchedules) {
  const Plan plan = hand_plan();
  const std::string html = report_html(plan, some_run(plan));
  const nlohmann::json data = step_data(html);
  const int columns = data["n"];
  EXPECT_EQ(columns, kPictureColumns);
  // The run of columns that holds the peak shows the plan's categories.
  nlohmann::json row;
  for (const auto& run : data["runs"])
    if (run[0] <= data["peak"]) row = run;
  for (size_t k = 0; k < data["cats"].size(); ++k) {
    const int c = data["cats"][k];
    EXPECT_EQ(row[k + 2].get<int64_t>(), plan.categories[static_cast<size_t>(c)]) << c;
    EXPECT_TRUE(has(html, fmt::format("id=\"v{}\">{}<", c,
                                      human_bytes(plan.categories[static_cast<size_t>(c)]))));
  }
}

// The rectangle of one tensor, from its tooltip.
TEST(Report, RectanglesLieAtTheirAddress) {
  const Plan plan = hand_plan();
  const std::string html = report_html(plan, ReportRun{});
  const Program& root = plan.schedule.at(0);
  const double unit = 380.0 / static_cast<double>(plan.engine_bytes);
  for (size_t k = 0; k < 5; ++k) {
    const TensorRecord& t = root.tensors[k];
    const double height = static_cast<double>(t.bytes) * unit;
    const double top = 380 - static_cast<double>(root.packing.offsets[k]) * unit - height;
    EXPECT_TRUE(has(html, fmt::format("x=\"0\" y=\"{}\" width=\"1000\" height=\"{}\"><title>{}",
                                      coordinate(top), coordinate(height), t.name.view())))
        << t.name.view();
  }
}

TEST(Report, RectanglesSayWhyTheyAreThere) {
  const std::string html = report_html(hand_plan(), ReportRun{});
  EXPECT_TRUE(has(html,
                  "micro_first: from h.0.mlp matmul_forward to h.0.mlp gelu_backward\n"
                  "kept for backward, which needs it up to h.0.mlp gelu_backward\nat address "));
  EXPECT_TRUE(has(html, "made again in backward, since forward dropped it"));
  EXPECT_TRUE(has(html, "the whole of root\nthe weights that layers read"));
}

TEST(Report, MeasuredTimesAreSaid) {
  const Plan plan = hand_plan();
  ReportRun run;
  EXPECT_TRUE(has(report_html(plan, run), "schedule position, weighted by work"));
  run.op_times.source = StepTimes::Source::measured;
  run.op_times.text = "step 2";
  const auto ops = plan.schedule.at(2).ops.size();
  run.op_times.programs.emplace_back(2, std::vector<double>(ops, 0.25 / static_cast<double>(ops)));
  const std::string html = report_html(plan, run);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_TRUE(has(html, "measured time (step 2); what is short is widened"));
  EXPECT_TRUE(has(html, ">micro_next, 7 times, 250 ms each<"));
  EXPECT_TRUE(has(html, "<td class=\"num\">250 ms</td><td>the same for the others"));
}

// No stream but one: no lanes. Of a step with copies: a lane each, at the time of their ops.
TEST(Report, LanesOnlyWhereStreamsAreUsed) {
  const Plan plan = hand_plan();
  const StepView view = make_step_view(plan, 100);
  EXPECT_EQ(lanes_picture(view), "");
  EXPECT_FALSE(has(report_html(plan, ReportRun{}), "Streams"));
  const auto stream_of = [](const OpRecord& op) {
    return std::string_view(op.name).starts_with("layernorm") ? 1 : 0;
  };
  const std::string html = lanes_picture(view, stream_of);
  EXPECT_EQ(markup_fault("<!DOCTYPE html>\n" + html), "");
  EXPECT_TRUE(has(html, ">to host</span>"));
  EXPECT_TRUE(has(html, ">compute</span>"));
  EXPECT_FALSE(has(html, "to device"));
  int64_t norms = 0;
  for (const StepSegment& s : view.segments)
    for (const OpRecord& op : plan.schedule.at(s.program).ops) norms += stream_of(op);
  EXPECT_TRUE(
      has(html, fmt::format("<th scope=\"row\">to host</th><td class=\"num\">{}</td>", norms)));
  EXPECT_EQ(count(html, "<title>to host: "), static_cast<size_t>(norms));  // each on its own
  EXPECT_FALSE(has(html, " ms"));                                          // weights are no times
  const StepTimes times = predicted_times(plan, op_seconds, "rates of a test");
  EXPECT_TRUE(has(lanes_picture(make_step_view(plan, 100, times), stream_of), " ms"));
}

TEST(Report, LadderSaysItsNeighbours) {
  EXPECT_EQ(ladder_picture({}), "");
  const int64_t MiB = 1 << 20;
  std::vector<ReportRung> ladder = {
      {64 * MiB, 60 * MiB, 1, "block", 800, "Recomputes blocks.", false},
      {96 * MiB, 90 * MiB, 2, "norms", 1000, "Recomputes <norms>.", true},
      {128 * MiB, 120 * MiB, 4, "none", 1100, "Keeps everything.", false}};
  ReportRun run;
  run.ladder = ladder;
  const std::string html = report_html(hand_plan(), run);
  EXPECT_EQ(markup_fault(html), "");
  EXPECT_TRUE(has(
      html, "One rung up: 32.00 MiB more of budget, +10.0 % tokens a second. Keeps everything."));
  EXPECT_TRUE(
      has(html,
          "One rung down: 32.00 MiB less of budget, -20.0 % tokens a second. Recomputes blocks."));
  EXPECT_TRUE(has(html, "Recomputes &lt;norms&gt;. (this plan)"));
  for (const char* tick : {">500</span>", ">1000</span>", "<td class=\"num\">800</td>"})
    EXPECT_TRUE(has(html, tick)) << tick;
  EXPECT_TRUE(has(html, data_bytes(90 * MiB)));
  // One rung alone, and rates that are no numbers.
  ladder = {{MiB, MiB, 1, "none", std::nan(""), "", false}};
  const std::string one = ladder_picture(ladder);
  EXPECT_EQ(markup_fault("<!DOCTYPE html>\n" + one), "");
  EXPECT_FALSE(has(one, "nanpx"));
  EXPECT_FALSE(has(one, "One rung"));
}

// Where residents fill nearly all of the arena, the rest is shown on a scale of its own.
TEST(Report, CrowdedPicturesAreEnlarged) {
  EXPECT_FALSE(has(report_html(hand_plan(), ReportRun{}), "without the"));
  const Plan plan = hand_plan(6, 128);
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_EQ(markup_fault(html), "");
  const Program& root = plan.schedule.at(0);
  int64_t resident = 0;
  for (const TensorRecord& t : root.tensors) resident += t.bytes;
  EXPECT_TRUE(has(html, "The same without the " + human_bytes(resident) + " of residents"));
  EXPECT_TRUE(has(html, "from address 0 to " + grouped(root.end()) + "; the axis counts"));
  EXPECT_FALSE(has(html, "<title>weights\n"));  // below the map
  // The first activation lies where its address says, counted from the end of the residents.
  const Program& micro = plan.schedule.at(1);
  const double unit = 380.0 / static_cast<double>(plan.engine_bytes - root.end());
  const double height = static_cast<double>(micro.tensors[0].bytes) * unit;
  const double top = 380 - static_cast<double>(micro.packing.offsets[0]) * unit - height;
  const size_t at = html.find("<title>x in embed");
  ASSERT_NE(at, std::string::npos);
  const std::string rectangle = html.substr(html.rfind("<rect", at), 120);
  EXPECT_TRUE(has(rectangle, "y=\"" + coordinate(top) + "\"")) << rectangle;
  EXPECT_TRUE(has(rectangle, "height=\"" + coordinate(height) + "\"")) << rectangle;
  EXPECT_TRUE(has(timeline_text(plan), human_bytes(resident) + " └"));
}

}  // namespace
}  // namespace snug
