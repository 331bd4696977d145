#include "tools/report/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "tools/report/markup.h"
#include "tools/report/step_view.h"
#include "tools/session/step_parts.h"

namespace snug {
namespace {

constexpr int kProcess = 1;
constexpr int kProgramThread = 1;  // streams follow

int thread_of(int stream) {
  return kProgramThread + 1 + stream;
}

// Bytes alive by category in every state of a program, residents below it included, in the arena of
// the device or the host's.
std::vector<CategoryBytes> states_of(const Schedule& s, int program, bool device) {
  const Program& p = s.at(program);
  const auto states = static_cast<size_t>(std::max<int64_t>(0, p.ticks)) + 1;
  std::vector<CategoryBytes> bytes(states + 1, CategoryBytes{});  // changes first
  const auto clamp_state = [&](int64_t state) {
    return static_cast<size_t>(std::clamp<int64_t>(state, 0, static_cast<int64_t>(states)));
  };
  for (int i = program; i >= 0; i = s.at(i).parent)
    for (const TensorRecord& t : s.at(i).tensors) {
      if (in_device_arena(t) != device) continue;
      const auto c = static_cast<size_t>(t.category);
      const bool own = i == program;
      bytes[own ? clamp_state(t.born + 1) : 0][c] += t.bytes;
      bytes[own && t.died != kNever ? clamp_state(t.died + 1) : states][c] -= t.bytes;
    }
  for (size_t k = 1; k < states; ++k)
    for (size_t c = 0; c < kCategories; ++c) bytes[k][c] += bytes[k - 1][c];
  bytes.pop_back();
  return bytes;
}

int64_t sum_of(const CategoryBytes& bytes) {
  int64_t sum = 0;
  for (const int64_t b : bytes) sum += b;
  return sum;
}

// The fullest of the states in (from, to].
const CategoryBytes& fullest(const std::vector<CategoryBytes>& states, int64_t from, int64_t to) {
  const auto last = static_cast<int64_t>(states.size()) - 1;
  const auto end = static_cast<size_t>(std::clamp<int64_t>(to, 0, last));
  size_t best = end;
  for (auto k = static_cast<size_t>(std::max<int64_t>(0, from + 1)); k < end; ++k)
    if (sum_of(states[k]) > sum_of(states[best])) best = k;
  return states[best];
}

int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

// The unit of the format, with all digits: a double of a long run would lose the last ones.
std::string microseconds(int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

class Events {
 public:
  void meta(const char* what, int thread, const std::string& name) {
    add(fmt::format(
        "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"args\":{{\"name\":{}}}}}", kProcess,
        thread, what, json_text(name)));
  }
  void order(int thread) {
    add(
        fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_sort_index\","
                    "\"args\":{{\"sort_index\":{}}}}}",
                    kProcess, thread, thread));
  }
  // Both ends are rounded to the nanosecond and the duration is what lies between: a duration
  // rounded by itself reaches into the next slice one time in eight, and Perfetto drops slices that
  // overlap.
  void slice(int thread, std::string_view name, std::string_view category, double begin, double end,
             const std::string& arguments) {
    const int64_t first = nanoseconds(begin), last = std::max(first, nanoseconds(end));
    add(
        fmt::format("{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":{},\"cat\":{},\"ts\":{},"
                    "\"dur\":{},\"args\":{{{}}}}}",
                    kProcess, thread, json_text(name), json_text(category), microseconds(first),
                    microseconds(last - first), arguments));
  }
  void counter(const char* name, double time, const std::vector<Category>& categories,
               const CategoryBytes& bytes) {
    std::string values;
    for (const Category c : categories)
      values += fmt::format("{}\"{}\":{}", values.empty() ? "" : ",", to_string(c),
                            bytes[static_cast<size_t>(c)]);
    std::string& last = last_[name];
    if (values == last) return;
    last = values;
    add(fmt::format("{{\"ph\":\"C\",\"pid\":{},\"name\":\"{}\",\"ts\":{},\"args\":{{{}}}}}",
                    kProcess, name, microseconds(nanoseconds(time)), values));
  }
  const std::string& text() const { return text_; }

 private:
  void add(const std::string& event) {
    text_ += text_.empty() ? "\n" : ",\n";
    text_ += event;
  }
  std::string text_;
  std::map<std::string, std::string> last_;  // of every counter
};

}  // namespace

StepTrace predicted_trace(const Plan& plan, const StepTimes& op_times, int64_t most) {
  StepTrace trace;
  trace.text = op_times.known() ? "predicted: " + op_times.text : "weights, not a prediction";
  double clock = 0;
  int64_t left = most;
  const std::vector<int> programs = step_programs(plan);
  for (const int index : programs) {
    const Program& p = plan.schedule.at(index);
    int64_t times = 1;
    for (const StepPart& part : step_parts(plan.schedule, plan.accumulation))
      if (part.program == index) times = part.runs;
    const auto ops = static_cast<int64_t>(p.ops.size());
    const int64_t fit = ops > 0 ? std::max<int64_t>(1, left / ops) : 1;
    trace.left_out += std::max<int64_t>(0, times - fit);
    times = std::min(times, fit);
    const std::vector<OpSpan> spans = op_spans(p, op_times.of(plan.schedule, index));
    for (int64_t n = 0; n < times; ++n) {
      double end = clock;
      for (size_t k = 0; k < spans.size(); ++k) {
        trace.ops.push_back(
            {index, static_cast<int32_t>(k), clock + spans[k].begin, clock + spans[k].end});
        end = std::max(end, clock + spans[k].end);
      }
      clock = end;
    }
    left -= times * ops;
  }
  return trace;
}

std::string trace_text(const Plan& plan, const StepTrace& trace) {
  const Schedule& s = plan.schedule;
  std::map<int, std::vector<CategoryBytes>> states, host;
  std::vector<Category> categories;
  std::vector<int> streams;
  for (const TraceOp& o : trace.ops) {
    if (!states.contains(o.program)) {
      states.emplace(o.program, states_of(s, o.program, true));
      host.emplace(o.program, states_of(s, o.program, false));
    }
    const int stream = op_stream(s.at(o.program).ops[static_cast<size_t>(o.op)]);
    if (std::find(streams.begin(), streams.end(), stream) == streams.end())
      streams.push_back(stream);
  }
  for (size_t c = 0; c < kCategories; ++c)
    if (std::any_of(states.begin(), states.end(), [&](const auto& entry) {
          return std::any_of(entry.second.begin(), entry.second.end(),
                             [&](const CategoryBytes& b) { return b[c] != 0; });
        }))
      categories.push_back(static_cast<Category>(c));

  const bool on_host = plan.schedule.host_bytes() > 0;
  Events events;
  events.meta("process_name", 0,
              trace.measured ? fmt::format("Snug, step {} as measured", trace.step)
                             : "Snug, a step as planned");
  events.meta("thread_name", kProgramThread, "programs");
  events.order(kProgramThread);
  std::sort(streams.begin(), streams.end());
  for (const int stream : streams) {
    events.meta("thread_name", thread_of(stream), lane_name(stream));
    events.order(thread_of(stream));
  }

  size_t first = 0;  // of the program that runs
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const TraceOp& o = trace.ops[i];
    const Program& p = s.at(o.program);
    const OpRecord& op = p.ops[static_cast<size_t>(o.op)];
    const bool starts = i == first;
    const int64_t before = starts ? -1 : p.ops[static_cast<size_t>(trace.ops[i - 1].op)].time;
    events.counter("memory", o.begin, categories, fullest(states[o.program], before, op.time));
    if (on_host)
      events.counter("host memory", o.begin, {Category::offload},
                     fullest(host[o.program], before, op.time));
    std::string arguments =
        fmt::format("\"program\":{},\"scope\":{},\"flops\":{},\"bytes\":{}",
                    json_text(p.name.view()), json_text(op.scope.view()), op.flops, op.bytes);
    if (!op.variant.empty())
      arguments += fmt::format(",\"variant\":{}", json_text(op.variant.view()));
    if (trace.measured && o.end > o.begin)
      arguments += fmt::format(",\"gflops_per_second\":{:.3f},\"gb_per_second\":{:.3f}",
                               static_cast<double>(op.flops) / (o.end - o.begin) * 1e-9,
                               static_cast<double>(op.bytes) / (o.end - o.begin) * 1e-9);
    events.slice(thread_of(op_stream(op)), op.name, p.name.view(), o.begin, o.end, arguments);
    const bool ends = i + 1 == trace.ops.size() || trace.ops[i + 1].program != o.program ||
                      trace.ops[i + 1].op <= o.op;
    if (!ends) continue;
    events.slice(kProgramThread, p.name.view(), "program", trace.ops[first].begin, o.end,
                 fmt::format("\"ops\":{}", i + 1 - first));
    events.counter("memory", o.end, categories, fullest(states[o.program], op.time, p.ticks));
    if (on_host)
      events.counter("host memory", o.end, {Category::offload},
                     fullest(host[o.program], op.time, p.ticks));
    first = i + 1;
  }
  const std::string facts =
      fmt::format("\"engine_bytes\":{},\"hash\":{},\"times\":{},\"micro_steps_left_out\":{}",
                  plan.engine_bytes, json_text(plan_hash(plan)),
                  json_text(trace.measured ? "measured" : trace.text), trace.left_out);
  return "{\"displayTimeUnit\":\"ms\",\"otherData\":{" + facts + "},\"traceEvents\":[" +
         events.text() + "\n]}\n";
}

}  // namespace snug
