#include "tools/trainer/run_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <limits>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/io/files.h"
#include "engine/io/json.h"

namespace snug {
namespace {

// What was logged beyond the checkpoint is cut, so that the curve reads as if nothing had happened.
// A torn last line goes too.
void cut_after(const std::string& path, int64_t step) {
  const std::string text = read_file(path);
  std::string kept;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;
    const std::string_view line(text.data() + at, end - at);
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object() && j.contains("step") && j["step"].is_number_integer() &&
        j["step"].get<int64_t>() <= step)
      kept.append(line).push_back('\n');
    at = end + 1;
  }
  write_atomic(path, kept);
}

// RFC 3339, UTC.
void timestamp(char (&out)[32]) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::strftime(out, sizeof out, "%Y-%m-%dT%H:%M:%SZ", &parts);
}

// Floats with 9 digits: an fp32 loss is told apart from its neighbours. JSON knows finite numbers
// only.
std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : std::string("null");
}

// Lines of metrics.jsonl that are objects with a step.
template <typename Use>
void for_each_line(const std::string& path, Use use) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_object() && j.contains("step") && j["step"].is_number_integer()) use(j);
  }
}

}  // namespace

void read_metrics(const std::string& output_dir, ReportRun& report) {
  constexpr int64_t kLines = 4096;
  const std::string path = output_dir + "/metrics.jsonl";
  report.metrics.clear();
  report.evals.clear();
  report.memory_samples.clear();
  int64_t steps = 0, evals = 0;
  for_each_line(path, [&](const nlohmann::json& j) {
    steps += j.contains("loss");
    evals += j.contains("eval_loss");
  });
  const auto value = [](const nlohmann::json& j, const char* key) {
    return j.contains(key) && j[key].is_number() ? j[key].get<double>()
                                                 : std::numeric_limits<double>::quiet_NaN();
  };
  // Counted from the end, so that the last line is among those that stay.
  const auto stays = [](int64_t left, int64_t count) {
    return left % ((count + kLines - 1) / kLines) == 0;
  };
  int64_t steps_left = steps, evals_left = evals;
  for_each_line(path, [&](const nlohmann::json& j) {
    const auto step = j["step"].get<int64_t>();
    if (j.contains("loss") && stays(--steps_left, steps)) {
      report.metrics.push_back({step, value(j, "loss"), value(j, "learning_rate"),
                                value(j, "grad_norm"), value(j, "tokens_per_second"),
                                value(j, "elapsed_seconds")});
      if (j.contains("memory_bytes") && j["memory_bytes"].is_number_integer())
        report.memory_samples.emplace_back(value(j, "elapsed_seconds"),
                                           j["memory_bytes"].get<int64_t>());
    }
    if (j.contains("eval_loss") && stays(--evals_left, evals))
      report.evals.push_back({step, value(j, "eval_loss")});
  });
}

RunLog::RunLog(const std::string& output_dir, int64_t keep_until_step)
    : path_(output_dir + "/metrics.jsonl") {
  if (keep_until_step >= 0 && file_exists(path_)) cut_after(path_, keep_until_step);
  metrics_ = std::fopen(path_.c_str(), keep_until_step >= 0 ? "ae" : "we");
  if (!metrics_)
    fail(ErrorCode::device, "to open " + path_, std::strerror(errno), "another output_dir");
  // What the C library would allocate at the first line: the file's buffer, the time zone.
  std::setvbuf(metrics_, buffer_, _IOFBF, sizeof buffer_);
  char when[32];
  timestamp(when);
  terminal_ = isatty(STDOUT_FILENO) && !std::getenv("CI");
}

RunLog::~RunLog() {
  if (live_open_) std::fputc('\n', stdout);
  if (metrics_) std::fclose(metrics_);
}

void RunLog::line(const char* text) {
  if (std::fputs(text, metrics_) < 0 || std::fflush(metrics_) != 0)
    fail(ErrorCode::device, "to write " + path_, std::strerror(errno), "free disk space");
}

void RunLog::say(const std::string& text) {
  if (live_open_) std::fputs("\r\033[K", stdout);
  live_open_ = false;
  std::fputs(text.c_str(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

void RunLog::live(const StepMetrics& m) {
  if (!terminal_) return;
  const auto total = static_cast<double>(m.total_steps);
  const double share = total > 0 ? static_cast<double>(m.step) / total : 0.0;
  std::string text = fmt::format("\r\033[K  step {}", m.step);
  if (m.total_steps > 0) text += fmt::format("/{} {:3.0f}%", m.total_steps, 100.0 * share);
  text += fmt::format("  loss {:.4f}  {:.0f} tokens/s  {}", m.loss, m.tokens_per_second,
                      human_bytes(m.memory_bytes));
  if (m.remaining >= 0) text += "  left " + human_seconds(m.remaining);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  live_open_ = true;
}

void RunLog::step(const StepMetrics& m) {
  char when[32];
  timestamp(when);
  const std::string startup = m.startup_seconds < 0
                                  ? std::string()
                                  : fmt::format("\"startup_seconds\":{:.3f},", m.startup_seconds);
  line(fmt::format("{{\"step\":{},\"loss\":{},\"learning_rate\":{},\"grad_norm\":{},"
                   "\"epoch\":{:.6f},\"num_input_tokens_seen\":{},\"tokens_per_second\":{:.1f},"
                   "\"step_seconds\":{:.6f},\"elapsed_seconds\":{:.3f},\"memory_bytes\":{},"
                   "{}\"time\":\"{}\"}}\n",
                   m.step, number(m.loss), number(m.learning_rate), number(m.grad_norm), m.epoch,
                   m.tokens_seen, m.tokens_per_second, m.step_seconds, m.elapsed, m.memory_bytes,
                   startup, when)
           .c_str());
  std::string text = fmt::format("step {:>6}", m.step);
  if (m.total_steps > 0) text += fmt::format("/{}", m.total_steps);
  text +=
      fmt::format("  loss {:8.4f}  lr {:.2e}  norm {:7.3f}  {:>7.0f} tokens/s  {}", m.loss,
                  m.learning_rate, m.grad_norm, m.tokens_per_second, human_bytes(m.memory_bytes));
  if (m.remaining >= 0) text += "  left " + human_seconds(m.remaining);
  say(text);
}

void RunLog::evaluation(int64_t step, double loss, double perplexity, double seconds,
                        int64_t tokens) {
  char when[32];
  timestamp(when);
  line(fmt::format("{{\"step\":{},\"eval_loss\":{},\"eval_perplexity\":{},"
                   "\"eval_runtime\":{:.3f},\"eval_tokens\":{},\"time\":\"{}\"}}\n",
                   step, number(loss), number(perplexity), seconds, tokens, when)
           .c_str());
  say(fmt::format("step {:>6}  validation loss {:.4f}  perplexity {:.2f}  ({} tokens, {})", step,
                  loss, perplexity, tokens, human_seconds(seconds)));
}

}  // namespace snug
