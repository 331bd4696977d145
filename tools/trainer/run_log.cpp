#include "tools/trainer/run_log.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <optional>

#include "engine/core/units.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/unicode.h"
#include "tools/cli/terminal.h"
#include "tools/infer/evaluate.h"

namespace snug {
namespace {

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

// An empty cell for what is no number.
std::string cell(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : std::string();
}

constexpr const char* kCsvHeader =
    "step,epoch,loss,learning_rate,grad_norm,tokens_per_second,step_seconds,elapsed_seconds,"
    "num_input_tokens_seen,memory_bytes,eval_loss,eval_perplexity,eval_runtime,eval_tokens,";

// The step in the first column; the heading has none.
std::optional<int64_t> csv_step(std::string_view line) {
  int64_t step = 0;
  const auto result = std::from_chars(line.data(), line.data() + line.size(), step);
  if (result.ec != std::errc() || result.ptr == line.data() + line.size() || *result.ptr != ',')
    return std::nullopt;
  return step;
}

}  // namespace

std::string loss_scale_text(double scale) {
  constexpr double kLongest = 1e15;
  int power = 0;
  const bool exact = std::frexp(scale, &power) == 0.5 && scale < kLongest;
  return exact ? fmt::format("{}", scale) : fmt::format("{:.6g}", scale);
}

RunSinks run_sinks(const std::vector<std::string>& report_to) {
  RunSinks sinks;
  for (const std::string& name : report_to) {
    sinks.csv |= name == "csv" || name == "all";
    sinks.tensorboard |= name == "tensorboard" || name == "all";
  }
  return sinks;
}

double remaining_seconds(double spent, int64_t first, int64_t step, int64_t total, double left) {
  if (total <= 0 || step <= first) return left;
  const double steps =
      spent / static_cast<double>(step - first) * static_cast<double>(total - step);
  return left < 0 ? steps : std::min(steps, left);
}

std::string csv_heading(bool loss_scaling) {
  return fmt::format("{}{}time\n", kCsvHeader, loss_scaling ? "loss_scale,skipped_steps," : "");
}

RunLog::RunLog(const std::string& output_dir, int64_t keep_until_step, RunSinks sinks, Aside* aside)
    : loss_scaling_(sinks.loss_scaling), path_(output_dir + "/metrics.jsonl") {
  const bool resumed = keep_until_step >= 0;
  const std::string csv = output_dir + "/metrics.csv";
  if (resumed) {
    const auto cut = [&](const char* name, const auto& where) {
      const std::string path = output_dir + "/" + name;
      if (!aside) return cut_lines(path, where);
      return cut_lines(path, where, [&] { return aside->folder() + "/" + name; });
    };
    const auto later = [&](std::optional<int64_t> step) {
      return step && *step <= keep_until_step ? LineGoes::here : LineGoes::aside;
    };
    const int64_t lines =
        cut("metrics.jsonl", [&](std::string_view line) { return later(step_of_line(line)); });
    if (lines > 0 && aside)
      aside->note(fmt::format("{} line{} of metrics", lines, lines == 1 ? "" : "s"));
    // Also where nothing is added any more: what is there is not to tell of steps that never were.
    cut("metrics.csv", [&](std::string_view line) {
      return line.starts_with("step,") ? LineGoes::both : later(csv_step(line));
    });
    // A mark of the last resume alone is nothing to keep.
    EventFile::cut(output_dir + "/runs", keep_until_step,
                   aside && aside->used() ? aside->folder() + "/runs" : "");
  }
  metrics_ = std::make_unique<LineFile>(path_, resumed);
  if (sinks.csv) {
    csv_ = std::make_unique<LineFile>(csv, resumed);
    if (csv_->size() == 0) csv_->write(csv_heading(loss_scaling_));
  }
  if (sinks.tensorboard)
    events_ = std::make_unique<EventFile>(output_dir + "/runs", keep_until_step);
  // What the C library would allocate at the first line: the time zone.
  char when[32];
  timestamp(when);
  terminal_ = lively_terminal(STDOUT_FILENO);
}

RunLog::~RunLog() {
  if (live_open_) std::fputc('\n', stdout);
}

void RunLog::sync() {
  metrics_->sync();
  if (csv_) csv_->sync();
  if (events_) events_->sync();
}

void RunLog::recover(const std::string& output_dir) {
  path_ = output_dir + "/metrics.jsonl";
  write_atomic(path_, metrics_->text());
  if (csv_) write_atomic(output_dir + "/metrics.csv", csv_->text());
}

void RunLog::say(const std::string& text) {
  if (live_open_) std::fputs("\r\033[K", stdout);
  live_open_ = false;
  // A command is one line, to be copied.
  const bool fits = !terminal_ || text.find(": snug ") != std::string::npos;
  std::fputs(fits ? text.c_str() : fit_terminal(text).c_str(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

namespace {

// Of pairs what tells whether they are learned.
std::string preference_words(const MetricList& metrics) {
  const bool rewards = metrics.begin()->name == "accuracy";
  if ((metrics.end() - 1)->name == "kl") {
    // Of answers that are all of one kind there is none.
    const double margin = metrics.at("rewards/margins");
    return (std::isnan(margin) ? std::string() : fmt::format("margin {:.4f}  ", margin)) +
           fmt::format("kl {:.4f}", metrics.at("kl"));
  }
  return fmt::format("accuracy {:.3f}  margin {:.4f}",
                     metrics.at(rewards ? "accuracy" : "rewards/accuracies"),
                     metrics.at(rewards ? "margin" : "rewards/margins"));
}

}  // namespace

void RunLog::live(const StepMetrics& m) {
  if (!terminal_) return;
  const auto total = static_cast<double>(m.total_steps);
  const double share = total > 0 ? static_cast<double>(m.step) / total : 0.0;
  constexpr std::string_view kLineStart = "\r\033[K";
  std::string text = fmt::format("{}  step {}", kLineStart, m.step);
  if (m.total_steps > 0) text += fmt::format("/{} {:3.0f}%", m.total_steps, 100.0 * share);
  text += fmt::format("  loss {:.4f}  {:.0f} tokens/s  {}", m.loss, m.tokens_per_second,
                      human_bytes(m.memory_bytes));
  if (m.gpu_utilisation >= 0) text += fmt::format("  GPU {} %", m.gpu_utilisation);
  if (m.gpu_watts >= 0) text += fmt::format(" {:.0f} W", m.gpu_watts);
  if (m.remaining >= 0) text += "  left " + human_seconds(m.remaining);
  // A line that wraps leaves its upper half behind.
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
    text.resize(std::min<size_t>(text.size(), kLineStart.size() + size.ws_col - 1));
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  live_open_ = true;
}

void RunLog::step(const StepMetrics& m) {
  char when[32];
  timestamp(when);
  const std::string startup =
      m.startup_seconds < 0 ? std::string()
                            : fmt::format(
                                  "\"startup_seconds\":{:.3f},"
                                  "\"predicted_tokens_per_second\":{:.1f},{}{}{}",
                                  m.startup_seconds, m.predicted_tokens_per_second,
                                  m.leg.empty() ? "" : "\"leg\":", m.leg, m.leg.empty() ? "" : ",");
  std::string scale;
  if (loss_scaling_) scale += fmt::format("\"loss_scale\":{},", m.loss_scale);
  if (m.skipped_steps >= 0) scale += fmt::format("\"skipped_steps\":{},", m.skipped_steps);
  if (m.empty_share >= 0) scale += fmt::format("\"empty_share\":{:.6f},", m.empty_share);
  if (m.idle_share >= 0) scale += fmt::format("\"idle_share\":{:.6f},", m.idle_share);
  for (const Metric& metric : m.metrics)
    scale += fmt::format("\"{}\":{},", metric.name, number(metric.value));
  std::string gpu;
  if (m.gpu_used_bytes >= 0) gpu += fmt::format("\"gpu_used_bytes\":{},", m.gpu_used_bytes);
  if (m.gpu_utilisation >= 0) gpu += fmt::format("\"gpu_utilisation\":{},", m.gpu_utilisation);
  if (m.gpu_watts >= 0) gpu += fmt::format("\"gpu_watts\":{:.1f},", m.gpu_watts);
  metrics_->write(fmt::format(
      "{{\"step\":{},\"loss\":{},\"learning_rate\":{},\"grad_norm\":{},"
      "\"epoch\":{:.6f},\"num_input_tokens_seen\":{},\"tokens_per_second\":{:.1f},"
      "\"step_seconds\":{:.6f},\"elapsed_seconds\":{:.3f},\"memory_bytes\":{},"
      "{}{}{}\"time\":\"{}\"}}\n",
      m.step, number(m.loss), number(m.learning_rate), number(m.grad_norm), m.epoch, m.tokens_seen,
      m.tokens_per_second, m.step_seconds, m.elapsed, m.memory_bytes, scale, gpu, startup, when));
  if (csv_)
    csv_->write(fmt::format(
        "{},{:.6f},{},{},{},{:.1f},{:.6f},{:.3f},{},{},,,,,{}{}\n", m.step, m.epoch, cell(m.loss),
        cell(m.learning_rate), cell(m.grad_norm), m.tokens_per_second, m.step_seconds, m.elapsed,
        m.tokens_seen, m.memory_bytes,
        loss_scaling_ ? fmt::format("{},{},", m.loss_scale, m.skipped_steps) : "", when));
  if (events_)
    events_->scalars(m.step, {{"train/loss", m.loss},
                              {"lr", m.learning_rate},
                              {"grad_norm", m.grad_norm},
                              {"tokens_per_second", m.tokens_per_second}});
  for (const Metric& metric : m.metrics)
    if (events_)
      events_->scalars(m.step, {{fmt::format("train/{}", metric.name).c_str(), metric.value}});
  if (events_ && loss_scaling_) events_->scalars(m.step, {{"loss_scale", m.loss_scale}});
  if (events_ && m.skipped_steps >= 0)
    events_->scalars(m.step, {{"skipped_steps", static_cast<double>(m.skipped_steps)}});
  std::string text = fmt::format("step {:>6}", m.step);
  if (m.total_steps > 0) text += fmt::format("/{}", m.total_steps);
  text += fmt::format("  loss {:8.4f}", m.loss);
  if (m.metrics.count > 0) text += "  " + preference_words(m.metrics);
  text += fmt::format("  lr {:.2e}  norm {:>7.3f}  {:>7.0f} tokens/s  {}", m.learning_rate,
                      std::fabs(m.grad_norm),  // a NaN has no sign here
                      m.tokens_per_second, human_bytes(m.memory_bytes));
  if (loss_scaling_) text += "  scale " + loss_scale_text(m.loss_scale);
  if (loss_scaling_ || m.skipped_steps > 0) text += fmt::format("  skipped {}", m.skipped_steps);
  if (m.remaining >= 0) text += "  left " + human_seconds(m.remaining);
  say(text);
}

void RunLog::evaluation(const EvalMetrics& m) {
  char when[32];
  timestamp(when);
  const bool task = m.metrics.count > 0;  // of labels: a perplexity says nothing of them
  std::string keys, words;
  if (!task) {
    keys = fmt::format("\"eval_perplexity\":{},", number(m.perplexity));
    words = "perplexity " + perplexity_text(m.perplexity, 2);
  }
  for (const Metric& metric : m.metrics) {
    keys += fmt::format("\"eval_{}\":{},", metric.name, number(metric.value));
    words += fmt::format("{}{} {:.4f}", words.empty() ? "" : "  ", metric.name, metric.value);
  }
  if (m.pairs && task) words = preference_words(m.metrics);
  metrics_->write(
      fmt::format("{{\"step\":{},\"eval_loss\":{},{}\"epoch\":{:.6f},"
                  "\"eval_runtime\":{:.3f},\"eval_tokens\":{},\"time\":\"{}\"}}\n",
                  m.step, number(m.loss), keys, m.epoch, m.seconds, m.tokens, when));
  if (csv_)
    csv_->write(fmt::format("{},{:.6f},,,,,,,,,{},{},{:.3f},{},{}{}\n", m.step, m.epoch,
                            cell(m.loss), task ? "" : cell(m.perplexity), m.seconds, m.tokens,
                            loss_scaling_ ? ",," : "", when));
  if (events_ && !task)
    events_->scalars(m.step, {{"eval/loss", m.loss}, {"eval/perplexity", m.perplexity}});
  if (events_ && task) {
    events_->scalars(m.step, {{"eval/loss", m.loss}});
    for (const Metric& metric : m.metrics) {
      const std::string name = fmt::format("eval/{}", metric.name);
      events_->scalars(m.step, {{name.c_str(), metric.value}});
    }
  }
  say(fmt::format("step {:>6}  validation loss {:.4f}  {}  ({} {}, {})", m.step, std::fabs(m.loss),
                  words, m.tokens,
                  m.pairs ? m.pairs
                  : task  ? "labels"
                          : "tokens",
                  human_seconds(m.seconds)));
}

void RunLog::sample(int64_t step, std::string_view text) {
  // Longer lines are nobody's here (LineReader).
  constexpr size_t kMost = 8 << 10;
  const std::string shown(text.substr(0, utf8_complete_prefix(text.substr(0, kMost))));
  char when[32];
  timestamp(when);
  metrics_->write(fmt::format(
      "{{\"step\":{},\"sample\":{},\"time\":\"{}\"}}\n", step,
      nlohmann::json(shown).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), when));
  if (events_) events_->text(step, "sample", shown);
}

}  // namespace snug
