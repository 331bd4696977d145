// Traces: valid, ordered, and their counters are the plan's bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/tools/session_case.h"
#include "tests/tools/test_report_schedule.h"
#include "tools/report/trace.h"
#include "tools/trainer/step_recorder.h"

namespace snug {
namespace {

using Json = nlohmann::json;

// What the format asks of every event; returns the events.
std::vector<Json> checked(const std::string& text) {
  const Json all = Json::parse(text);
  std::vector<Json> events;
  std::map<std::string, double> last;  // begin of the event before, by lane and by counter
  std::map<int, int64_t> ends;         // of the slice before, by lane, in nanoseconds
  for (const Json& e : all.at("traceEvents")) {
    const std::string ph = e.at("ph");
    EXPECT_TRUE(ph == "X" || ph == "C" || ph == "M") << e;
    EXPECT_TRUE(e.at("pid").is_number_integer());
    EXPECT_TRUE(e.at("name").is_string());
    EXPECT_TRUE(e.at("args").is_object());
    if (ph == "M") {
      const std::string name = e.at("name");
      EXPECT_TRUE(e.at("tid").is_number_integer());
      if (name == "thread_sort_index")
        EXPECT_TRUE(e["args"].at("sort_index").is_number_integer());
      else
        EXPECT_TRUE((name == "process_name" || name == "thread_name") &&
                    e["args"].at("name").is_string());
    } else {
      const double ts = e.at("ts").get<double>();
      double& before = last[ph == "X" ? e.at("tid").dump() : e.at("name").get<std::string>()];
      EXPECT_GE(ts, before) << "events of a lane in the order of time: " << e;
      before = ts;
    }
    if (ph == "X") {
      EXPECT_GE(e.at("dur").get<double>(), 0);
      EXPECT_TRUE(e.at("tid").is_number_integer());
      // Viewers drop a slice that begins within another of its lane, by a nanosecond too.
      const int64_t begin = std::llround(e.at("ts").get<double>() * 1e3);
      int64_t& end = ends[e.at("tid").get<int>()];
      EXPECT_GE(begin, end) << "slices of a lane follow one another: " << e;
      end = begin + std::llround(e.at("dur").get<double>() * 1e3);
    }
    if (ph == "C") {
      EXPECT_FALSE(e["args"].empty());
      for (const auto& [name, value] : e["args"].items()) EXPECT_TRUE(value.is_number_integer());
    }
    events.push_back(e);
  }
  return events;
}

// The counter with the largest sum.
std::map<std::string, int64_t> fullest(const std::vector<Json>& events) {
  std::map<std::string, int64_t> best;
  int64_t most = -1;
  for (const Json& e : events) {
    if (e["ph"] != "C") continue;
    int64_t sum = 0;
    std::map<std::string, int64_t> values;
    for (const auto& [name, value] : e["args"].items()) sum += values[name] = value.get<int64_t>();
    if (sum <= most) continue;
    most = sum;
    best = values;
  }
  return best;
}

void expect_plans_peak(const Plan& plan, const std::vector<Json>& events) {
  const std::map<std::string, int64_t> values = fullest(events);
  int64_t sum = plan.padding;
  for (size_t c = 0; c < kCategories; ++c) {
    const auto at = values.find(to_string(static_cast<Category>(c)));
    EXPECT_EQ(at == values.end() ? 0 : at->second, plan.categories[c])
        << to_string(static_cast<Category>(c));
    sum += at == values.end() ? 0 : at->second;
  }
  EXPECT_EQ(sum, plan.engine_bytes);
}

TEST(Trace, APlannedStepHasEveryOpAndThePeak) {
  const Plan plan = hand_plan();
  const StepTrace trace = predicted_trace(plan);
  EXPECT_EQ(trace.left_out, 0);
  const std::vector<Json> events = checked(trace_text(plan, trace));
  expect_plans_peak(plan, events);
  size_t ops = 0, programs = 0;
  for (const Json& e : events) {
    if (e["ph"] != "X") continue;
    if (e["cat"] == "program") {
      ++programs;
      continue;
    }
    ++ops;
    EXPECT_TRUE(e["args"].contains("scope") && e["args"].contains("flops") &&
                e["args"].contains("bytes"));
  }
  EXPECT_EQ(programs, 1u + 7u + 1u);
  const auto count = [&](const char* name) {
    return plan.schedule.at(plan.schedule.find(name)).ops.size();
  };
  EXPECT_EQ(ops, count("micro_first") + 7 * count("micro_next") + count("update"));
}

// What lives and dies before the first op, between two, or after the last is in the counters too.
TEST(Trace, PeaksBetweenOpsAreNotLost) {
  for (const int ops_before : {0, 1, 2}) {
    SCOPED_TRACE(ops_before);
    Plan plan;
    Schedule& s = plan.schedule;
    HandRecorder(s, "root", -1, true).make("weights", "", Category::weights, 1 << 20);
    {
      HandRecorder r(s, "micro_first", 0, false);
      for (int k = 0; k < ops_before; ++k) r.op("before", "", 1000, 1000);
      const size_t first = r.make("x", "", Category::activations, 1 << 20);
      const size_t second = r.make("y", "", Category::workspace, 1 << 19);
      r.end(first);
      r.end(second);
      for (int k = ops_before; k < 2; ++k) r.op("after", "", 1000, 1000);
    }
    s.pack();
    plan.engine_bytes = s.arena_bytes();
    plan.categories = s.at_peak(&plan.padding);
    plan.accumulation = 1;
    ASSERT_EQ(plan.engine_bytes, (1 << 21) + (1 << 19));
    expect_plans_peak(plan, checked(trace_text(plan, predicted_trace(plan))));
  }
}

// A counter at an op has what came alive since the op before it, not what was there then; a measured op
// says what it did a second: 3e6 flops and 5e6 bytes in a millisecond.
TEST(Trace, CountersAndRatesAreThoseOfTheirOp) {
  Plan plan;
  Schedule& s = plan.schedule;
  HandRecorder(s, "root", -1, true).make("weights", "", Category::weights, 4096);
  HandRecorder r(s, "micro_first", 0, false);
  const size_t large = r.make("x", "", Category::workspace, 1 << 20);
  r.op("first", "", 3'000'000, 5'000'000);
  r.end(large);
  const size_t small = r.make("y", "", Category::workspace, 4096);
  r.op("second", "", 1, 1);
  r.end(small);
  s.pack();
  plan.engine_bytes = s.arena_bytes();
  plan.accumulation = 1;
  StepTrace trace = predicted_trace(plan);
  ASSERT_EQ(trace.ops.size(), 2u);
  trace.measured = true;
  for (size_t i = 0; i < 2; ++i) {
    trace.ops[i].begin = 1e-3 * static_cast<double>(i);
    trace.ops[i].end = trace.ops[i].begin + 1e-3;
  }
  std::map<double, int64_t> workspace;
  for (const Json& e : checked(trace_text(plan, trace))) {
    if (e["ph"] == "C" && e["name"] == "memory")
      workspace[e["ts"].get<double>()] = e["args"]["workspace"].get<int64_t>();
    if (e["ph"] != "X" || e["name"] != "first") continue;
    EXPECT_EQ(e["args"]["gflops_per_second"], 3.0);
    EXPECT_EQ(e["args"]["gb_per_second"], 5.0);
  }
  EXPECT_EQ(workspace.at(0.0), 1 << 20);
  EXPECT_EQ(workspace.at(1000.0), 4096);
}

// What rests with the host has a counter of its own, where there is any.
TEST(Trace, TheHostsMemoryIsCountedApart) {
  for (const bool away : {false, true}) {
    Plan plan;
    Schedule& s = plan.schedule;
    HandRecorder(s, "root", -1, true).make("weights", "", Category::weights, 4096);
    HandRecorder r(s, "micro_first", 0, false);
    const size_t x = r.make("x", "", Category::activations, 8192);
    const size_t kept = r.make("kept", "", Category::offload, 3 * 4096);
    r.op("first", "", 1, 1);
    if (away) s.at(r.index()).tensors[kept].residence = Residence::host;
    r.end(kept);
    r.op("second", "", 1, 1);
    r.end(x);
    s.pack();
    plan.engine_bytes = s.arena_bytes();
    plan.accumulation = 1;
    StepTrace trace = predicted_trace(plan);
    ASSERT_EQ(trace.ops.size(), 2u);
    std::map<std::string, std::vector<int64_t>> offload, activations;
    for (const Json& e : checked(trace_text(plan, trace))) {
      if (e["ph"] != "C") continue;
      const std::string name = e["name"];
      offload[name].push_back(e["args"].value("offload", int64_t{-1}));
      activations[name].push_back(e["args"].value("activations", int64_t{-1}));
    }
    const std::string host = "host memory";
    EXPECT_EQ(offload.contains(host), away);
    EXPECT_EQ(activations.at("memory").front(), 8192);
    EXPECT_EQ(offload.at("memory").front(), away ? -1 : 3 * 4096);
    if (!away) continue;
    EXPECT_EQ(offload.at(host).front(), 3 * 4096);
    EXPECT_EQ(offload.at(host).back(), 0);
    EXPECT_EQ(activations.at(host).front(), -1);
  }
}

TEST(Trace, LongStepsAreCutAndThatIsSaid) {
  const Plan plan = hand_plan();
  const size_t micro = plan.schedule.at(1).ops.size();
  const StepTrace trace = predicted_trace(plan, {}, static_cast<int64_t>(3 * micro + 10));
  EXPECT_EQ(trace.left_out, 5);
  const Json all = Json::parse(trace_text(plan, trace));
  EXPECT_EQ(all["otherData"]["micro_steps_left_out"], 5);
  EXPECT_EQ(all["otherData"]["engine_bytes"], plan.engine_bytes);
  expect_plans_peak(plan, checked(all.dump()));
}

TEST(Trace, NamesOfAnyBytesStayJson) {
  Plan plan = hand_plan(1);
  for (OpRecord& op : plan.schedule.at(1).ops) op.scope = Name("\"\\\n\xff");
  checked(trace_text(plan, predicted_trace(plan)));
}

// A step that trains: every op once, in time, and the plan's peak.
void expect_measured(int64_t accumulation) {
  const Model model(test::tiny_spec({}), parse_precision("fp32"));
  PlanRequest r;
  r.model = &model;
  r.T = 16;
  r.global_batch = 2 * accumulation;
  r.micro_batch = 2;
  const Plan plan = make_plan(r);
  ASSERT_EQ(plan.accumulation, accumulation);
  Session session(Place::cpu, model, plan.decisions, r.optimizer, r.settings, &plan.schedule);
  session.open();
  init_parameters(model.params(), session.master(), 1, 1);
  session.load();
  std::fill_n(session.tokens().as<int32_t>(), 2 * 16, 1);
  std::fill_n(session.targets().as<int32_t>(), 2 * 16, 2);
  StepRecorder recorder(plan, true);
  EXPECT_FALSE(recorder.times().measured());
  for (int step = 0; step < 2; ++step) {
    recorder.begin_step(session.context(), step + 1);
    session.begin_window(1, step, 32 * accumulation);
    for (int64_t m = 0; m < accumulation; ++m) session.micro(m == 0);
    session.optimizer().prepare_step(session.state());
    session.update();
    recorder.end_step(session.context());
  }
  session.micro(true);  // of no step: leaves no trace
  ASSERT_TRUE(recorder.recorded());
  EXPECT_EQ(recorder.trace().step, 2);
  EXPECT_EQ(recorder.trace().left_out, 0);
  const auto count = [&](const char* name) {
    return plan.schedule.at(plan.schedule.find(name)).ops.size();
  };
  const auto again = static_cast<size_t>(accumulation - 1);
  const size_t all = count("micro_first") + again * count("micro_next") + count("update");
  EXPECT_EQ(recorder.trace().ops.size(), all);
  EXPECT_EQ(recorder.trace().ops.capacity(), all) << "room for the ops of one step";
  double end = 0, sum = 0;
  for (const TraceOp& op : recorder.trace().ops) {
    EXPECT_GE(op.begin, end - 1e-5);
    EXPECT_GE(op.end, op.begin);
    end = op.end;
    sum += op.end - op.begin;
  }
  EXPECT_LE(sum, end * 1.01);
  // The report's times of an op are the mean over the runs of its program.
  const StepTimes times = recorder.times();
  EXPECT_TRUE(times.measured());
  EXPECT_EQ(times.text, "step 2");
  EXPECT_EQ(times.programs.size(), accumulation > 1 ? 3u : 2u) << "no times of what did not run";
  for (const auto& [index, of_program] : times.programs) {
    const std::string name = plan.schedule.at(index).name.str();
    double of_ops = 0, runs = 0;
    for (const TraceOp& op : recorder.trace().ops) {
      of_ops += op.program == index ? op.end - op.begin : 0;
      runs += op.program == index && op.op == 0 ? 1 : 0;
    }
    const std::vector<double> seconds = times.of(plan.schedule, index);
    EXPECT_NEAR(std::accumulate(seconds.begin(), seconds.end(), 0.0), of_ops / runs, 1e-9) << name;
  }
  expect_plans_peak(plan, checked(trace_text(plan, recorder.trace())));
}

TEST(Trace, AMeasuredStepIsThePlannedOne) {
  for (const int64_t accumulation : {3, 2, 1}) {
    SCOPED_TRACE(accumulation);
    expect_measured(accumulation);
  }
}

// A GPU tells the times of its ops when the program has ended: the trace has them, not when it
// heard.
TEST(Trace, HasTheTimesThatADeviceTells) {
  const Model model(test::tiny_spec({}), parse_precision("fp32"));
  PlanRequest r;
  r.model = &model;
  r.T = 16;
  r.global_batch = 2;
  r.micro_batch = 2;
  const Plan plan = make_plan(r);
  Session session(Place::cpu, model, plan.decisions, r.optimizer, r.settings, &plan.schedule);
  session.open();
  StepRecorder recorder(plan, true);
  recorder.begin_step(session.context(), 3);
  const Program& program = plan.schedule.at(plan.schedule.find("micro_first"));
  const double start = monotonic_seconds();
  for (int32_t op = 0; op < 5; ++op)
    recorder.op_span(program, op, start + 1e-3 * op, start + 1e-3 * op + 4e-4);
  recorder.end_step(session.context());
  const auto& ops = recorder.trace().ops;
  ASSERT_EQ(ops.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(ops[i].end - ops[i].begin, 4e-4, 1e-9);
    EXPECT_NEAR(ops[i].begin - ops[0].begin, 1e-3 * static_cast<double>(i), 1e-9);
  }
  EXPECT_NEAR(recorder.times().of(plan.schedule, plan.schedule.find("micro_first"))[2], 4e-4, 1e-9);
}

}  // namespace
}  // namespace snug
