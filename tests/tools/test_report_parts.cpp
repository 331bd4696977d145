// The parts of the report: the step as data, the terminal picture, numbers and ticks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/core/units.h"
#include "tests/tools/markup_fault.h"
#include "tests/tools/test_report_schedule.h"
#include "tools/report/markup.h"
#include "tools/report/pictures.h"
#include "tools/report/plot.h"
#include "tools/report/report.h"
#include "tools/report/side_by_side.h"
#include "tools/report/step_view.h"
#include "tools/report/story.h"
#include "tools/report/tensor_facts.h"

namespace snug {
namespace {

int64_t sum_of(const CategoryBytes& bytes) {
  int64_t sum = 0;
  for (const int64_t b : bytes) sum += b;
  return sum;
}

TEST(ReportStep, ShowsTheProgramsOfAStep) {
  Plan plan = hand_plan();
  const auto labels = [&] {
    std::vector<std::string> list;
    for (const StepSegment& s : make_step_view(plan, 100).segments) list.push_back(s.label);
    return list;
  };
  EXPECT_EQ(labels(), (std::vector<std::string>{"micro_first", "micro_next, 7 times", "update"}));
  plan.accumulation = 2;
  EXPECT_EQ(labels(), (std::vector<std::string>{"micro_first", "micro_next", "update"}));
  plan.accumulation = 1;
  EXPECT_EQ(labels(), (std::vector<std::string>{"micro_first", "update"}));
  // A program outside the step that sets the height is shown as well.
  {
    HandRecorder r(plan.schedule, "save", 0, false);
    r.end(r.make("staging", "", Category::workspace, int64_t{1} << 30));
  }
  plan.schedule.pack();
  EXPECT_EQ(labels(), (std::vector<std::string>{"micro_first", "update", "save"}));
}

TEST(ReportStep, AxisCoversTheStepInOrder) {
  const Plan plan = hand_plan();
  const StepView view = make_step_view(plan, 100);
  double at = 0;
  for (const StepSegment& s : view.segments) {
    EXPECT_EQ(s.states(), plan.schedule.at(s.program).ticks + 1);
    EXPECT_NEAR(s.x.front(), at, 1e-9);
    for (size_t k = 0; k + 1 < s.x.size(); ++k) EXPECT_LT(s.x[k], s.x[k + 1]);
    at = s.x.back();
  }
  EXPECT_NEAR(at, 1.0, 1e-9);
  // The head's product is the largest op of the small step: its state is wider than a norm's.
  const Program& p = plan.schedule.at(view.segments[0].program);
  const auto width = [&](const char* op) {
    for (const OpRecord& o : p.ops)
      if (std::string(o.name) == op)
        return view.segments[0].x[static_cast<size_t>(o.time) + 1] -
               view.segments[0].x[static_cast<size_t>(o.time)];
    return 0.0;
  };
  EXPECT_GT(width("head_forward"), 4 * width("layernorm_forward"));
}

// Measured times take the place of the weights; the ends of ops are found on the axis.
TEST(ReportStep, MeasuredTimesMoveTheAxis) {
  const Plan plan = hand_plan();
  StepTimes times;
  times.source = StepTimes::Source::measured;
  const int micro = plan.schedule.find("micro_first");
  std::vector<double> seconds(plan.schedule.at(micro).ops.size(), 1e-6);
  seconds[5] = 1.0;
  times.programs.emplace_back(micro, seconds);
  const StepView view = make_step_view(plan, 100, times);
  const StepSegment& s = view.segments[0];
  const int64_t state = plan.schedule.at(micro).ops[5].time;
  const double width = s.x[static_cast<size_t>(state) + 1] - s.x[static_cast<size_t>(state)];
  EXPECT_GT(width, 0.5 * (s.x.back() - s.x.front()));
  EXPECT_NEAR(s.start.back(), 1.0, 1e-3);
  EXPECT_NEAR(s.x_at(s.spans[5].begin), s.x[static_cast<size_t>(state)], 1e-6);
  EXPECT_NEAR(s.x_at(s.spans[5].end), s.x[static_cast<size_t>(state) + 1], 1e-6);
  EXPECT_EQ(s.x_at(-1), s.x.front());
  EXPECT_EQ(s.x_at(1e9), s.x.back());
  EXPECT_EQ(view.bytes_at(view.peak), plan.categories);  // bytes are not moved by time
}

// Of ops that take no time the axis is as wide, and the table says how many tensors it does not name.
TEST(ReportStep, OpsWithoutWorkAreOnTheAxis) {
  Plan plan = hand_plan();
  const StepView busy = make_step_view(plan, 100);
  const size_t held = busy.held(busy.peak).size();
  ASSERT_GT(held, 12u);
  EXPECT_NE(report_html(plan, ReportRun{})
                .find("<th scope=\"row\">" + std::to_string(held - 12) + " others</th>"),
            std::string::npos);
  for (int i = 0; i < plan.schedule.size(); ++i)
    for (OpRecord& op : plan.schedule.at(i).ops) op.flops = op.bytes = 0;
  const StepView view = make_step_view(plan, 100);
  double before = 0;
  for (const StepSegment& s : view.segments)
    for (const double x : s.x) {
      ASSERT_TRUE(std::isfinite(x));
      EXPECT_GE(x, before - 1e-12);
      before = x;
    }
  EXPECT_NEAR(before, 1, 1e-9);
  EXPECT_EQ(view.bytes_at(view.peak), plan.categories);
}

TEST(ReportStep, BytesAreTheSchedules) {
  const Plan plan = hand_plan();
  const StepView view = make_step_view(plan, 257);
  EXPECT_EQ(sum_of(view.bytes_at(view.peak)), sum_of(plan.categories));
  EXPECT_EQ(view.bytes_at(view.peak), plan.categories);
  int64_t highest = 0;
  for (const StepColumn& c : view.columns) {
    EXPECT_EQ(c.total, sum_of(view.bytes_at(c.moment)));
    int64_t bands = 0, held = 0;
    for (const int64_t b : c.bytes) bands += b;
    for (const HeldTensor& h : view.held(c.moment)) held += h.tensor->bytes;
    EXPECT_EQ(c.total, bands);
    EXPECT_EQ(c.total, held);
    highest = std::max(highest, c.total);
  }
  int64_t truth = 0;  // over all ticks of the step's programs
  for (const StepSegment& s : view.segments)
    for (int64_t t = -1; t < plan.schedule.at(s.program).ticks; ++t)
      truth = std::max(truth, sum_of(plan.schedule.live(s.program, t)));
  EXPECT_EQ(highest, truth);  // a peak is never lost between columns
}

TEST(ReportStep, ActivationsAreGroupedByLayer) {
  const auto labels = [](int64_t L) {
    const Plan plan = hand_plan(L);
    std::vector<std::string> list;
    for (const StepBand& b : make_step_view(plan, 50).bands)
      if (b.category == Category::activations) list.push_back(b.label);
    return list;
  };
  EXPECT_EQ(labels(2),
            (std::vector<std::string>{"activations", "activations h.0", "activations h.1"}));
  EXPECT_EQ(labels(12)[1], "activations h.0 to h.1");
  EXPECT_EQ(labels(12).size(), 7u);
  EXPECT_EQ(labels(48).back(), "activations h.40 to h.47");
}

TEST(ReportStep, ResidentsLieBelow) {
  const Plan plan = hand_plan();
  const StepView view = make_step_view(plan, 50);
  const auto first_step = std::find_if(view.bands.begin(), view.bands.end(),
                                       [](const StepBand& b) { return !b.resident; });
  EXPECT_GT(first_step - view.bands.begin(), 0);
  EXPECT_TRUE(
      std::none_of(first_step, view.bands.end(), [](const StepBand& b) { return b.resident; }));
}

// Why a tensor is there, of a slot that is kept, one that is made again, and one that was away.
TEST(ReportFacts, SayWhyATensorIsThere) {
  Schedule s;
  HandRecorder(s, "root", -1, true).make("weights", "", Category::weights, 256);
  HandRecorder r(s, "micro_first", 0, false);
  const size_t kept = r.make("kept", "h.0", Category::activations, 256);
  r.op("norm_forward", "h.0", 1, 1);
  const size_t dropped = r.make("dropped", "h.0", Category::activations, 256);
  r.op("act_forward", "h.0", 1, 1);
  r.end(dropped);
  const size_t sent = r.make("sent", "h.0", Category::activations, 256);
  r.op("matmul", "h.0", 1, 1);
  r.end(sent);
  const size_t silent = r.make("silent", "h.0", Category::workspace, 256);
  r.end(silent);
  const size_t back = r.make("sent", "h.0", Category::activations, 256);
  r.op("norm_backward", "h.0", 1, 1);
  const size_t again = r.make("dropped", "h.0", Category::recomputed, 256);
  r.op("act_forward", "h.0", 1, 1);
  r.op("act_backward", "h.0", 1, 1);
  for (const size_t t : {again, back, kept}) r.end(t);
  const Program& p = s.at(1);
  EXPECT_EQ(first_backward_op(p), 3);
  EXPECT_EQ(why_there(p, kept), "kept for backward, which needs it up to h.0 act_backward");
  EXPECT_EQ(why_there(p, dropped),
            "forward drops it after h.0 act_forward; backward makes it again (recompute)");
  EXPECT_EQ(why_there(p, again),
            "made again in backward, since forward dropped it; needed up to h.0 act_backward");
  EXPECT_EQ(why_there(p, sent),
            "forward drops it after h.0 matmul; backward fetches it from the host (offload)");
  EXPECT_EQ(why_there(p, back),
            "fetched from the host for backward, which needs it up to h.0 act_backward");
  EXPECT_EQ(ops_of(p, p.tensors[silent]).first, -1);
  EXPECT_EQ(ops_of(p, p.tensors[kept]).first, 0);
  EXPECT_EQ(ops_of(p, p.tensors[kept]).last, 5);
  EXPECT_EQ(ops_of(p, p.tensors[dropped]).last, 1);
  EXPECT_EQ(op_text(p, 5, "none"), "h.0 act_backward (op 6 of 6)");
  EXPECT_EQ(op_text(p, -1, "none"), "none");
  HandRecorder u(s, "update", 0, false);
  const size_t alone = u.make("partial", "clip", Category::workspace, 256);
  const size_t passed = u.make("sums", "clip", Category::workspace, 256);
  u.op("sum_squares", "clip", 1, 1);
  u.end(alone);
  u.op("scale", "clip", 1, 1);
  u.end(passed);
  EXPECT_EQ(why_there(s.at(2), alone), "space that clip sum_squares works in");
  EXPECT_EQ(why_there(s.at(2), passed), "passed on between ops up to clip scale");
  EXPECT_EQ(why_there(s.at(0), 0), "the weights that layers read, resident for the whole run");
}

// Columns of a terminal: characters of UTF-8.
size_t width_of(const std::string& line) {
  return static_cast<size_t>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

TEST(ReportTimeline, TenLinesOfEightyColumns) {
  for (const int64_t L : {1, 6, 48}) {
    Plan plan = hand_plan(L);
    std::string text = timeline_text(plan);
    int lines = 0;
    for (size_t at = 0; at < text.size(); ++lines) {
      const size_t end = text.find('\n', at);
      ASSERT_NE(end, std::string::npos);
      EXPECT_LE(width_of(text.substr(at, end - at)), 80u);
      at = end + 1;
    }
    EXPECT_EQ(lines, 10);
    const StepView view = make_step_view(plan, 64);
    EXPECT_NE(text.find(human_bytes(plan.engine_bytes)), std::string::npos);
    const int64_t resident = sum_of(plan.schedule.live(1, -1));
    EXPECT_NE(text.find("resident " + human_bytes(resident) + "  "), std::string::npos);
    EXPECT_NE(text.find("step " + human_bytes(sum_of(plan.categories) - resident) + "  "),
              std::string::npos);
    EXPECT_NE(text.find("▲ peak, in micro_first"), std::string::npos);
    EXPECT_NE(text.find(" update"), std::string::npos);
  }
}

TEST(ReportTimeline, AsciiHasTheSameShape) {
  const Plan plan = hand_plan();
  const std::string blocks = timeline_text(plan), ascii = timeline_text(plan, Glyphs::ascii);
  EXPECT_TRUE(std::all_of(ascii.begin(), ascii.end(), [](unsigned char c) { return c < 0x80; }));
  std::istringstream a(blocks), b(ascii);
  for (std::string x, y; std::getline(a, x) && std::getline(b, y);) {
    EXPECT_EQ(width_of(x), y.size());
    EXPECT_LE(y.size(), 80u);
  }
  EXPECT_NE(ascii.find("= resident "), std::string::npos);
  EXPECT_NE(ascii.find("^ peak, in micro_first"), std::string::npos);
  EXPECT_EQ(std::count(ascii.begin(), ascii.end(), '\n'), 10);
}

TEST(ReportTimeline, HeightIsBytes) {
  // Residents take half of the arena, the step the other half, in its second program.
  Plan plan;
  Schedule& s = plan.schedule;
  HandRecorder(s, "root", -1, true).make("weights", "", Category::weights, 1 << 20);
  HandRecorder(s, "micro_first", 0, false).op("a", "", 0, 1000);
  {
    HandRecorder r(s, "update", 0, false);
    const size_t t = r.make("all", "", Category::workspace, 1 << 20);
    r.op("b", "", 0, 1000000);
    r.end(t);
  }
  s.pack();
  plan.engine_bytes = s.arena_bytes();
  plan.accumulation = 1;
  const std::string text = timeline_text(plan);
  const std::string top = text.substr(0, text.find('\n'));
  EXPECT_NE(top.find("2.00 MiB"), std::string::npos);
  EXPECT_NE(top.find("┤  "), std::string::npos);  // nothing above the first program
  EXPECT_NE(top.find("█████"), std::string::npos);
  EXPECT_EQ(top.find("░"), std::string::npos);
  size_t at = 0;
  for (int row = 0; row < 6; ++row) at = text.find('\n', at) + 1;
  EXPECT_NE(text.substr(at, text.find('\n', at) - at).find("░░░░░░░░░░░"), std::string::npos);
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// What the step has above residents that crowd it is what is packed of its programs.
TEST(ReportStep, AnEnlargedPictureSaysWhatIsInIt) {
  const Plan plan = hand_plan(6, 128);
  int64_t most = 0;
  for (int i = 1; i < plan.schedule.size(); ++i)
    most = std::max(most, plan.schedule.at(i).packing.lower_bound);
  const std::string html = report_html(plan, ReportRun{});
  EXPECT_EQ(count(html, "The same without residents; at most " + human_bytes(most) + "."), 1u);
}

// There are four colours: the fifth run has the first one, dashed.
TEST(ReportRuns, TheFifthCurveIsDashed) {
  std::vector<ComparedRun> runs(5);
  for (ComparedRun& c : runs)
    c.run.metrics = {{10, 8, 1e-3, 1.5, 1000, 0.5}, {20, 7, 1e-3, 1.5, 1000, 1.0}};
  const std::string html = side_by_side_html(runs);
  const size_t charts = count(html, "class=\"curve s3\"");
  EXPECT_GT(charts, 0u);
  EXPECT_EQ(count(html, "class=\"curve s0\""), charts);
  EXPECT_EQ(count(html, "class=\"curve s0 d1\""), charts);
}

// Of 50 samples every third, counted from the latest, which stands open.
TEST(ReportRuns, OfManySamplesTheLatestStays) {
  ReportRun run;
  for (int64_t i = 1; i <= 50; ++i) run.samples.push_back({i, "text"});
  const std::string html = story_html(run);
  EXPECT_EQ(count(html, "<details open=\"\"><summary>step 50</summary>"), 1u) << html;
  EXPECT_EQ(count(html, "<details"), 17u);
  EXPECT_EQ(count(html, "<summary>step 47</summary>") + count(html, "<summary>step 2</summary>"),
            2u);
}

// Every row of the table has what is planned and what was measured of it, and of nothing else.
TEST(Report, EveryRowHasItsOwnMeasurement) {
  Plan plan = hand_plan();
  plan.host_bytes = 51200;
  plan.disk.bytes = 61440;
  plan.budget = 1 << 27;
  ReportRun run;
  run.measured_engine_bytes = 10011;
  run.measured_runtime_bytes = 10022;
  run.measured_host_bytes = 10033;
  run.disk_bytes = 10044;
  const std::string html = report_html(plan, run);
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  const auto row = [&](const std::string& name) {
    const size_t at = html.find("<th scope=\"row\">" + name + "</th>");
    return at == std::string::npos ? "" : html.substr(at, html.find("</tr>", at) - at);
  };
  for (const auto& [name, planned, measured] :
       {std::tuple("engine", plan.engine_bytes, 10011),
        {"runtime", plan.runtime_bytes, 10022},
        {"host", plan.host_bytes, 10033},
        {"disk", plan.disk.bytes, 10044},
        {"budget", plan.budget, 0},
        {"total", plan.engine_bytes + plan.runtime_bytes, 0},
        {"minimum", plan.minimum_bytes, 0}}) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(has(row(name), data_bytes(planned) + "</td>")) << row(name);
    EXPECT_TRUE(has(row(name), human_bytes(planned))) << row(name);
    for (const int64_t seen : {10011, 10022, 10033, 10044})
      EXPECT_EQ(has(row(name), data_bytes(seen)), seen == measured) << seen << row(name);
  }
  plan.host_bytes = plan.disk.bytes = plan.budget = 0;
  const std::string less = report_html(plan, ReportRun{});
  for (const char* name : {"host", "disk", "budget"})
    EXPECT_FALSE(has(less, std::string("<th scope=\"row\">") + name + "</th>")) << name;
}

TEST(ReportMarkup, Escapes) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&'</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape_html("한국어 ✓ 😀\n\t"), "한국어 ✓ 😀\n\t");
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(escape_html(std::string("a\0b\x1b", 4)), "a" + r + "b" + r);
  EXPECT_EQ(escape_html("\xC3"), r);                  // cut short
  EXPECT_EQ(escape_html("\xC0\xAF"), r + r);          // overlong
  EXPECT_EQ(escape_html("\xED\xA0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(escape_html("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(json_text("a\"\\\n</b>&"), "\"a\\\"\\\\\\u000a\\u003c/b\\u003e\\u0026\"");
  EXPECT_EQ(json_text("\xE2\x80\xA8"), "\"\\u2028\"");
}

TEST(ReportMarkup, Numbers) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-123456), "-123,456");
  EXPECT_EQ(grouped(1234567890123), "1,234,567,890,123");
  EXPECT_EQ(coordinate(1.5), "1.5");
  EXPECT_EQ(coordinate(100), "100");
  EXPECT_EQ(coordinate(-0.001), "0");
  EXPECT_EQ(data_bytes(4096), "<data value=\"4096\">4,096</data>");
}

TEST(ReportMarkup, Ticks) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(1.9, 4.1, 5), (std::vector<double>{2, 2.5, 3, 3.5, 4}));
  EXPECT_EQ(nice_ticks(3, 3, 5), (std::vector<double>{3}));
  EXPECT_TRUE(nice_ticks(1, 0, 5).empty());
  EXPECT_EQ(byte_ticks(int64_t{5} << 20, 5),
            (std::vector<int64_t>{0, 1 << 20, 2 << 20, 3 << 20, 4 << 20, 5 << 20}));
  EXPECT_EQ(byte_tick_text(3 << 19), "1.5 MiB");
  EXPECT_EQ(byte_tick_text(0), "0");
  EXPECT_EQ(tick_text(2.5, 0.5), "2.5");
  EXPECT_EQ(tick_text(3, 1), "3");
  EXPECT_EQ(tick_text(0.25, 0.25), "0.25");
}

// An axis that need not reach 0 ends where the points do, below it too.
TEST(ReportChart, WhatIsBelowZeroHasItsOwnTicks) {
  const Series s{"margin", "s0", {{0, -5}, {1, -4}}, false};
  const std::string html = line_chart("Margin", "step", {s}, false, 100);
  EXPECT_NE(html.find(">-5.0<"), std::string::npos) << html;
  EXPECT_NE(html.find(">-4.0<"), std::string::npos) << html;
  EXPECT_EQ(html.find(">-3"), std::string::npos) << html;
  EXPECT_EQ(html.find(">-2"), std::string::npos) << html;
  EXPECT_NE(html.find("M0 100"), std::string::npos) << html;
  EXPECT_NE(html.find("L1000 0"), std::string::npos) << html;
}

// A point that no line goes through lies where its step is, among others' steps.
TEST(ReportChart, ALonePointIsADotAtItsStep) {
  const Series all{"loss", "s0", {{0, 4}, {400, 2}}, false}, lone{"eval", "s1", {{300, 3}}, false};
  const std::string html = line_chart("Loss", "step", {all, lone}, false, 100);
  EXPECT_NE(html.find("class=\"dot s1\" style=\"left:75%;"), std::string::npos) << html;
}

TEST(ReportChart, SpikesSurviveThinning) {
  Series s{"loss", "s0", {}, false};
  for (int i = 0; i <= 100000; ++i) s.points.emplace_back(i, i == 54321 ? 50.0 : 2.0);
  const std::string html = line_chart("Loss", "step", {s}, true, 100);
  EXPECT_LT(html.size(), 40000u);
  EXPECT_NE(html.find("L543.21 0"), std::string::npos);  // the top of an axis from 0 to 50
}

// Bars to one scale of what is there, and none of an arena alone.
TEST(ReportPictures, TiersHaveABarEach) {
  Plan plan = hand_plan();
  EXPECT_EQ(tiers_picture(plan), "");
  plan.engine_bytes = 1000;
  plan.disk.bytes = 4000;
  std::string html = tiers_picture(plan);
  EXPECT_EQ(markup_fault("<!DOCTYPE html>\n" + html), "");
  EXPECT_TRUE(has(html, "width=\"250\" height=\"26\"><title>arena: " + grouped(1000)));
  EXPECT_TRUE(has(html, "width=\"1000\" height=\"26\"><title>disk: " + grouped(4000)));
  EXPECT_FALSE(has(html, "host: "));
  plan.host_bytes = 2000;
  html = tiers_picture(plan);
  EXPECT_TRUE(has(html, "width=\"500\" height=\"26\"><title>host: " + grouped(2000)));
  EXPECT_TRUE(has(html, "arena 1000 B, host "));
  EXPECT_TRUE(has(report_html(plan, ReportRun{}), "<h2>Tiers</h2>"));
}

}  // namespace
}  // namespace snug
