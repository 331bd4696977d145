#include "tools/trainer/run_story.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "tools/config/config_node.h"
#include "tools/trainer/line_file.h"

namespace snug {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// Lines stay in so many groups, of each the lowest and highest loss and the highest norm, and of the
// memory the lowest and highest.
constexpr int64_t kGroups = 1365;
constexpr int64_t kMostSamples = 64, kMostEvals = 4096;

// Behind "key": and spaces. Quotes within a JSON string are escaped, so that this is no text.
const char* behind(std::string_view line, std::string_view key) {
  char quoted[64] = {'"'};
  const size_t n = std::min(key.size(), sizeof quoted - 3);
  std::copy_n(key.data(), n, quoted + 1);
  quoted[n + 1] = '"';
  quoted[n + 2] = ':';
  const size_t at = line.find(std::string_view(quoted, n + 3));
  if (at == std::string_view::npos) return nullptr;
  const char* p = line.data() + at + n + 3;
  while (p != line.data() + line.size() && *p == ' ') ++p;
  return p;
}

enum class Kind { step, evaluation, sample, other };

// Ours say it behind their step; of others the whole line is looked at.
Kind kind_of(std::string_view line) {
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"eval_loss", Kind::evaluation}, {"sample", Kind::sample}, {"loss", Kind::step}};
  const size_t comma = line.find(",\"");
  const std::string_view rest = comma == std::string_view::npos ? "" : line.substr(comma + 2);
  for (const auto& [key, kind] : kKinds)
    if (rest.starts_with(key) && rest.substr(key.size()).starts_with("\":")) return kind;
  for (const auto& [key, kind] : kKinds)
    if (behind(line, key)) return kind;
  return Kind::other;
}

std::string text_of(const nlohmann::json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>()
                                                                : std::string();
}

int64_t whole_of(const nlohmann::json& j, const char* key, int64_t without) {
  return j.is_object() && j.contains(key) && j[key].is_number_integer() ? j[key].get<int64_t>()
                                                                        : without;
}

void read_leg(const nlohmann::json& said, ReportLeg& leg) {
  leg.from_step = whole_of(said, "from_step", leg.step);
  leg.engine_bytes = whole_of(said, "planned_engine_bytes", -1);
  leg.budget = whole_of(said, "budget_bytes", 0);
  leg.machine = text_of(said, "machine");
  leg.sentence = text_of(said, "plan");
  if (const std::string began = text_of(said, "began"); !began.empty()) leg.when = began;
}

ReportLeg leg_of(std::string_view line) {
  ReportLeg leg;
  const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
  if (!j.is_object()) return leg;
  leg.step = leg.from_step = whole_of(j, "step", 0);
  leg.seconds = number_in_line(line, "elapsed_seconds");
  if (!std::isfinite(leg.seconds)) leg.seconds = 0;
  const double rate = number_in_line(line, "predicted_tokens_per_second");
  leg.predicted_tokens_per_second = std::isfinite(rate) ? rate : 0;
  leg.when = text_of(j, "time");
  if (j.contains("leg")) read_leg(j["leg"], leg);
  return leg;
}

// Legs of which no line is logged: those that nothing was written of before they ended.
void read_unlogged_legs(const std::string& path, ReportRun& run) {
  if (!file_exists(path)) return;
  std::vector<ReportLeg> legs;
  LineReader in(path);
  while (const auto line = in.next()) {
    const nlohmann::json j = nlohmann::json::parse(*line, nullptr, false);
    if (!j.is_object()) continue;
    ReportLeg leg;
    read_leg(j, leg);
    leg.step = leg.from_step;
    leg.logged = false;
    // Of one that was gone back behind nothing is left.
    while (!legs.empty() && legs.back().from_step >= leg.from_step) legs.pop_back();
    legs.push_back(std::move(leg));
  }
  for (ReportLeg& leg : legs) {
    const auto same = [&](const ReportLeg& other) {
      return other.from_step == leg.from_step && other.when == leg.when;
    };
    if (std::any_of(run.legs.begin(), run.legs.end(), same)) continue;
    // Behind all that was logged up to its step.
    for (const ReportMetric& m : run.metrics)
      if (m.step <= leg.from_step && std::isfinite(m.seconds))
        leg.seconds = std::max(leg.seconds, std::nextafter(m.seconds, HUGE_VAL));
    const auto at = std::find_if(run.legs.begin(), run.legs.end(), [&](const ReportLeg& other) {
      return other.from_step > leg.from_step;
    });
    run.legs.insert(at, std::move(leg));
  }
}

// A group of lines on its way.
class Thinner {
 public:
  Thinner(ReportRun& run, int64_t lines) : run_(run), size_((lines + kGroups - 1) / kGroups) {}
  void add(const ReportMetric& m, int64_t memory) {
    group_.emplace_back(m, memory);
    if (static_cast<int64_t>(group_.size()) >= std::max<int64_t>(1, size_)) flush(false);
  }
  void flush(bool end) {
    if (group_.empty()) return;
    size_t low = 0, high = 0, norm = 0, least = 0, most = 0;
    const auto less = [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
    for (size_t i = 1; i < group_.size(); ++i) {
      if (less(group_[i].first.loss, group_[low].first.loss)) low = i;
      if (!(group_[i].first.loss <= group_[high].first.loss)) high = i;
      if (!(group_[i].first.grad_norm <= group_[norm].first.grad_norm)) norm = i;
      // -1 is none.
      const int64_t memory = group_[i].second;
      if (memory >= 0 && (group_[least].second < 0 || memory < group_[least].second)) least = i;
      if (memory > group_[most].second) most = i;
    }
    for (size_t i = 0; i < group_.size(); ++i) {
      const auto& [metric, memory] = group_[i];
      const bool last = end && i + 1 == group_.size();
      if (last || i == low || i == high || i == norm) run_.metrics.push_back(metric);
      if (memory >= 0 && (last || i == least || i == most))
        run_.memory_samples.emplace_back(metric.seconds, memory);
    }
    group_.clear();
  }

 private:
  ReportRun& run_;
  int64_t size_;
  std::vector<std::pair<ReportMetric, int64_t>> group_;
};

void read_lines(const std::string& path, ReportRun& run, bool greater) {
  if (!file_exists(path)) return;
  int64_t lines = 0, samples = 0, evals = 0, before_legs = 0;
  {
    LineReader in(path);
    while (const auto line = in.next()) {
      const Kind kind = kind_of(*line);
      lines += kind == Kind::step;
      samples += kind == Kind::sample;
      evals += kind == Kind::evaluation;
    }
  }
  Thinner thin(run, lines);
  // Counted from the end, so that the last ones stay.
  const int64_t eval_stride = evals / kMostEvals + 1, sample_stride = samples / kMostSamples + 1;
  // The best one stays, whether it is one of these or not.
  ReportEval best;
  LineReader in(path);
  while (const auto line = in.next()) {
    const auto step = step_of_line(*line);
    if (!step) continue;
    const Kind kind = kind_of(*line);
    if (kind == Kind::evaluation) {
      const double loss = number_in_line(*line, "eval_loss");
      // The start is what steps are compared with.
      const double by = number_in_line(*line, run.best_by);
      if (*step > 0 && std::isfinite(by) &&
          (run.best_step < 0 || (greater ? by > run.best_value : by < run.best_value))) {
        run.best_step = *step;
        run.best_value = by;
        best = {*step, loss};
      }
      if (--evals % eval_stride == 0) run.evals.push_back({*step, loss});
    } else if (kind == Kind::sample) {
      if (--samples % sample_stride == 0) {
        const nlohmann::json j = nlohmann::json::parse(*line, nullptr, false);
        if (j.is_object()) run.samples.push_back({*step, text_of(j, "sample")});
      }
    } else if (kind == Kind::step) {
      if (behind(*line, "startup_seconds")) {
        ReportLeg leg = leg_of(*line);
        // One that was gone back behind left nothing.
        for (; !run.legs.empty() && run.legs.back().from_step >= leg.from_step; run.legs.pop_back())
          leg.samples += run.legs.back().samples;
        if (run.legs.empty()) leg.samples += std::exchange(before_legs, 0);
        run.legs.push_back(std::move(leg));
        // A group has one plan.
        thin.flush(false);
      }
      const double memory = number_in_line(*line, "memory_bytes");
      if (std::isfinite(memory)) ++(run.legs.empty() ? before_legs : run.legs.back().samples);
      thin.add({*step, number_in_line(*line, "loss"), number_in_line(*line, "learning_rate"),
                number_in_line(*line, "grad_norm"), number_in_line(*line, "tokens_per_second"),
                number_in_line(*line, "elapsed_seconds")},
               std::isfinite(memory) ? static_cast<int64_t>(memory) : -1);
    }
    // The last key of ours, so that it is looked for from the end.
    constexpr std::string_view kTime = "\"time\":\"";
    if (const size_t at = line->rfind(kTime); at != std::string_view::npos) {
      const std::string_view when = line->substr(at + kTime.size());
      run.written = when.substr(0, when.find('"'));
    }
  }
  thin.flush(true);
  if (run.best_step < 0) return;
  const auto at = std::lower_bound(run.evals.begin(), run.evals.end(), best.step,
                                   [](const ReportEval& e, int64_t step) { return e.step < step; });
  if (at == run.evals.end() || at->step != best.step) run.evals.insert(at, best);
}

void flatten(const ConfigNode& node, const std::string& name,
             std::vector<std::pair<std::string, std::string>>& keys) {
  if (node.kind == ConfigNode::Kind::map) {
    for (const ConfigNode::Entry& e : node.entries)
      flatten(e.value, name.empty() ? e.key : name + "." + e.key, keys);
  } else if (node.kind == ConfigNode::Kind::list) {
    std::string text;
    for (const ConfigNode& item : node.items) text += (text.empty() ? "" : ", ") + item.text;
    keys.emplace_back(name, "[" + text + "]");
  } else {
    keys.emplace_back(name, node.kind == ConfigNode::Kind::null ? "null" : node.text);
  }
}

// The head of trainer_state.json, whose log may be long.
void read_state(const std::string& path, int64_t& global, int64_t& total) {
  LineReader in(path);
  while (const auto line = in.next()) {
    if (!line->starts_with("  \"")) continue;
    const auto take = [&](const char* key, int64_t& to) {
      if (const double v = number_in_line(*line, key); std::isfinite(v))
        to = static_cast<int64_t>(v);
    };
    take("global_step", global);
    take("max_steps", total);
  }
}

// A file that is not what a run writes, or not whole, is as one that is not there.
template <class Read>
void read_part(const std::string& path, ReportRun& run, Read&& read) {
  if (!file_exists(path)) return;
  try {
    read(path);
  } catch (const Error& e) {
    run.notes.push_back(fmt::format("{} is left out: {}", path, e.found()));
  }
}

nlohmann::json object_of(const std::string& path) {
  nlohmann::json j = parse_json_file(path);
  require_object(j, path);
  return j;
}

// Of the configuration, which each leg writes at its start. What trainer_state.json says may be of
// a leg before; 0 if no total can be right.
int64_t total_of(const ReportRun& run, int64_t stated, const std::string& max_steps, bool epochs) {
  int64_t last = run.metrics.empty() ? 0 : run.metrics.back().step;
  if (!run.evals.empty()) last = std::max(last, run.evals.back().step);
  int64_t most = 0;
  std::from_chars(max_steps.data(), max_steps.data() + max_steps.size(), most);
  if (stated < last) stated = 0;
  const int64_t total = most > 0 && !(epochs && stated > 0 && stated < most) ? most : stated;
  return total < last ? 0 : total;
}

}  // namespace

double number_in_line(std::string_view line, std::string_view key) {
  const char* const p = behind(line, key);
  double value = kNone;
  if (p == nullptr) return kNone;
  const auto result = std::from_chars(p, line.data() + line.size(), value);
  return result.ec == std::errc() ? value : kNone;
}

void begin_leg(const std::string& folder, const std::string& leg, bool goes_on) {
  LineFile(folder + "/" + kLegsFile, goes_on).write(leg + "\n");
}

ComparedRun read_compared_run(const std::string& folder) {
  ComparedRun out;
  ReportRun& run = out.run;
  run.title = folder;
  bool greater = false;
  const auto value = [&](const char* key) -> std::string {
    for (const auto& [k, v] : out.keys)
      if (k == key) return v;
    return "";
  };
  read_part(folder + "/config.resolved.yaml", run, [&](const std::string& path) {
    flatten(parse_config_node(read_file(path), path), "", out.keys);
    if (const std::string by = value("metric_for_best_model");
        !by.empty() && by != "eval_perplexity" && by != "auto" && by != "null")
      run.best_by = by;
    const std::string said = value("greater_is_better");
    greater = said == "true" || (said != "false" && !run.best_by.ends_with("loss"));
  });
  read_part(folder + "/plan.json", run,
            [&](const std::string& path) { run.model_text = text_of(object_of(path), "model"); });
  read_lines(folder + "/metrics.jsonl", run, greater);
  read_unlogged_legs(folder + "/" + kLegsFile, run);
  int64_t global = -1, stated = 0;
  read_part(folder + "/trainer_state.json", run,
            [&](const std::string& path) { read_state(path, global, stated); });
  double epochs = 0;
  const std::string said = value("num_train_epochs");
  std::from_chars(said.data(), said.data() + said.size(), epochs);
  run.total_steps = total_of(run, stated, value("max_steps"), epochs > 0);
  read_part(folder + "/memory.json", run, [&](const std::string& path) {
    const nlohmann::json j = object_of(path);
    const bool done = j.contains("finished") && j["finished"] == true;
    const int64_t last = run.metrics.empty() ? -1 : run.metrics.back().step;
    run.finished = done && global >= last;
    run.failure = text_of(j, "failure");
  });
  read_part(folder + "/final/" + kFinalFacts, run, [&](const std::string& path) {
    run.final_step = whole_of(object_of(path), "step", -1);
  });
  return out;
}

ReportRun read_run(const std::string& folder) {
  return read_compared_run(folder).run;
}

}  // namespace snug
