#include "tools/trainer/run_history.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <limits>

#include "engine/io/files.h"
#include "engine/io/json.h"

namespace snug {

namespace {

double value(const nlohmann::json& line, const char* key) {
  const auto at = line.find(key);
  return at != line.end() && at->is_number() ? at->get<double>()
                                             : std::numeric_limits<double>::quiet_NaN();
}

std::string text(const nlohmann::json& line, const char* key) {
  const auto at = line.find(key);
  return at != line.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// As RunLog writes them: numbers of so many digits, an empty cell for what is none.
std::string general(const nlohmann::json& line, const char* key) {
  const double x = value(line, key);
  return std::isfinite(x) ? fmt::format("{:.9g}", x) : "";
}
std::string fixed(const nlohmann::json& line, const char* key, int digits) {
  const double x = value(line, key);
  return std::isfinite(x) ? fmt::format("{:.{}f}", x, digits) : "";
}
std::string whole(const nlohmann::json& line, const char* key) {
  const auto at = line.find(key);
  return at != line.end() && at->is_number_integer() ? std::to_string(at->get<int64_t>()) : "";
}

std::string csv_row(const nlohmann::json& line, bool loss_scaling) {
  std::string scale;
  if (loss_scaling) {
    const double x = value(line, "loss_scale");
    scale = fmt::format("{},{},", std::isfinite(x) ? fmt::format("{}", x) : "",
                        whole(line, "skipped_steps"));
  }
  return fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}{}\n", whole(line, "step"),
                     fixed(line, "epoch", 6), general(line, "loss"), general(line, "learning_rate"),
                     general(line, "grad_norm"), fixed(line, "tokens_per_second", 1),
                     fixed(line, "step_seconds", 6), fixed(line, "elapsed_seconds", 3),
                     whole(line, "num_input_tokens_seen"), whole(line, "memory_bytes"),
                     general(line, "eval_loss"), general(line, "eval_perplexity"),
                     fixed(line, "eval_runtime", 3), whole(line, "eval_tokens"), scale,
                     text(line, "time"));
}

// Seconds since 1970, -1 for none.
double time_of(const nlohmann::json& line) {
  std::tm parts{};
  const std::string when = text(line, "time");
  return strptime(when.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts) == nullptr
             ? -1
             : static_cast<double>(timegm(&parts));
}

void write_events(EventFile& events, const nlohmann::json& line) {
  const auto step = line["step"].get<int64_t>();
  const double time = time_of(line);
  if (line.contains("sample")) return events.text(step, "sample", text(line, "sample"), time);
  if (line.contains("eval_loss")) {
    events.scalars(step,
                   {{"eval/loss", value(line, "eval_loss")},
                    {"eval/perplexity", value(line, "eval_perplexity")}},
                   time);
    return;
  }
  events.scalars(step,
                 {{"train/loss", value(line, "loss")},
                  {"lr", value(line, "learning_rate")},
                  {"grad_norm", value(line, "grad_norm")},
                  {"tokens_per_second", value(line, "tokens_per_second")}},
                 time);
  for (const char* key : {"loss_scale", "skipped_steps"})
    if (line.contains(key)) events.scalars(step, {{key, value(line, key)}}, time);
}

}  // namespace

void restore_log(const std::string& checkpoint, const std::string& output_dir,
                 const RunSinks& sinks) {
  const std::string path = checkpoint + "/trainer_state.json";
  if (!file_exists(path)) return;
  LineFile metrics(output_dir + "/metrics.jsonl", false);
  std::unique_ptr<LineFile> csv;
  std::unique_ptr<EventFile> events;
  if (sinks.csv) csv = std::make_unique<LineFile>(output_dir + "/metrics.csv", false);
  if (csv) csv->write(csv_heading(sinks.loss_scaling));
  if (sinks.tensorboard) events = std::make_unique<EventFile>(output_dir + "/runs", -1);
  LineReader in(path);
  bool inside = false;
  while (auto line = in.next()) {
    if (line->starts_with("  \"log_history\": [")) inside = true;
    if (line->starts_with("  ]")) inside = false;
    const size_t begin = line->find_first_not_of(' ');
    if (!inside || begin == std::string_view::npos || (*line)[begin] != '{') continue;
    std::string_view entry = line->substr(begin);
    if (entry.ends_with(',')) entry.remove_suffix(1);
    const nlohmann::json json = nlohmann::json::parse(entry, nullptr, false);
    if (!json.is_object() || !step_of_line(entry)) continue;
    metrics.write(fmt::format("{}\n", entry));
    if (csv && !json.contains("sample")) csv->write(csv_row(json, sinks.loss_scaling));
    if (events) write_events(*events, json);
  }
  metrics.sync();
  if (csv) csv->sync();
  if (events) events->sync();
}

}  // namespace snug
