#include "tools/trainer/trainer.h"

#include <fmt/format.h>
#include <malloc.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/data/token_file.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/unicode.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "tools/config/make_schedule.h"
#include "tools/report/report.h"
#include "tools/trainer/allocation_watch.h"
#include "tools/trainer/checkpoint.h"
#include "tools/trainer/evaluate.h"
#include "tools/trainer/generator.h"
#include "tools/trainer/output_folder.h"
#include "tools/trainer/pinning.h"
#include "tools/trainer/run_data.h"
#include "tools/trainer/run_log.h"
#include "tools/trainer/setup.h"
#include "tools/trainer/start_clock.h"

namespace snug {

namespace fs = std::filesystem;

namespace {

volatile std::sig_atomic_t stop_requested = 0;
void on_signal(int) {
  if (stop_requested) _exit(130);  // the second one stops at once
  stop_requested = 1;
}

// Steps of the schedule when the clock alone bounds the run.
constexpr int64_t kClockSteps = 1000;

class Trainer {
 public:
  explicit Trainer(const RunConfig& config) : setup_(make_setup(config)) { clock_.lap("setup"); }
  int run();

 private:
  int steps();
  void check_output_dir();
  Pinned pinned() const;
  void reserve();
  int64_t total_steps() const;
  double rate_factor(int64_t step) const;
  void prepare();
  void start_log();
  bool optimizer_step();
  void log_step(double step_seconds);
  void evaluate();
  void sample();
  std::string checkpoint();
  void write_final();
  void write_memory_json(bool finished);
  void write_report(bool finished);
  int stopped();
  int diverged();
  int data_lost(const DataLost& error);
  void add_model_files(const std::string& folder, DType dtype) const;
  bool finished() const;
  const RunConfig& config() const { return setup_.config; }

  StartClock clock_;
  RunSetup setup_;
  RunData data_;
  Plan plan_;
  std::optional<Checkpoint> resumed_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<CheckpointWriter> checkpoints_;
  std::unique_ptr<SafetensorsLayout> final_layout_;
  std::unique_ptr<LearningRateSchedule> schedule_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<RunLog> log_;
  std::vector<int32_t> sample_prompt_;
  std::string sample_text_, data_fingerprint_;
  std::string not_finite_;  // what a step found, if it did
  RunPosition at_;
  ReportRun report_;
  double started_ = 0, startup_ = -1;
  int64_t total_ = 0, runtime_measured_ = 0;
  bool last_ = false;  // decided once a step, so that all parts of the step agree
};

void Trainer::check_output_dir() {
  const std::string& dir = config().output_dir;
  if (dir.empty())
    fail(ErrorCode::usage, "output_dir, where the run is written", "none", "output_dir=run1");
  if (config().resume.empty()) {
    check_new_output(dir, config().overwrite);
    return;
  }
  std::string folder = config().resume, skipped;
  if (folder == "latest") {
    const auto latest = latest_checkpoint(dir, &skipped);
    if (!latest)
      fail(ErrorCode::usage, fmt::format("a complete checkpoint in {} to resume", dir),
           skipped.empty() ? "none" : "only torn ones: " + skipped, "leave resume out");
    if (!skipped.empty()) fmt::print("Skipped torn checkpoints: {}\n", skipped);
    folder = *latest;
  }
  resumed_ = read_checkpoint(folder);
  check_resumed_output(dir, folder);
}

Pinned Trainer::pinned() const {
  Pinned p = make_pinned(setup_, plan_.decisions, data_, data_fingerprint_);
  p.kernels = plan_.kernels;
  return p;
}

int64_t Trainer::total_steps() const {
  if (config().max_steps > 0) return config().max_steps;
  if (config().num_train_epochs > 0)
    return std::max<int64_t>(
        1, static_cast<int64_t>(
               std::ceil(static_cast<double>(data_.train_samples) * config().num_train_epochs /
                         static_cast<double>(plan_.global_batch))));
  return 0;
}

void Trainer::reserve() {
  malloc_trim(0);  // pages of the tokenisation that are free again
  const int64_t before = process_private_bytes();
  // A sanitizer's own memory, which is most of the process then, is not the run's.
  if (allocation_watch::available() && before > plan_.runtime_bytes)
    fail(ErrorCode::out_of_memory,
         fmt::format("at most {} B of runtime memory (program, libraries, tokenizer)",
                     plan_.runtime_bytes),
         fmt::format("{} B before the arena is reserved", before),
         "report this with the tokenizer you use; fewer threads need less");
  session_ =
      std::make_unique<Session>(Place::cpu, *setup_.model, plan_.decisions,
                                setup_.request.optimizer, setup_.request.settings, &plan_.schedule);
  session_->open();
  clock_.lap("memory");
  if (resumed_) {
    load_checkpoint(*session_, *resumed_);
  } else if (!setup_.model_folder.empty()) {
    for (const std::string& warning :
         load_weights(*setup_.model, setup_.model_folder, session_->master(),
                      setup_.request.settings.threads))
      fmt::print("Warning: {}\n", warning);
    session_->load();
  } else {
    init_parameters(setup_.model->params(), session_->master(),
                    static_cast<uint64_t>(config().seed), setup_.request.settings.threads);
    session_->load();
  }
  clock_.lap("weights");
}

double Trainer::rate_factor(int64_t step) const {
  if (total_ > 0) return schedule_->factor(step);
  // Only max_time bounds the run: the schedule follows the clock, kClockSteps ticks long.
  const double share =
      std::min(1.0, (at_.elapsed + monotonic_seconds() - started_) / config().max_time);
  return schedule_->factor(static_cast<int64_t>(share * static_cast<double>(kClockSteps)));
}

// False if the loss or a gradient is not finite; the step is then not done.
bool Trainer::optimizer_step() {
  const Decisions& d = plan_.decisions;
  const int64_t G = plan_.global_batch, B = d.micro_batch, T = d.T;
  Session& s = *session_;
  int32_t* tokens = s.tokens().as<int32_t>();
  int32_t* targets = s.targets().as<int32_t>();
  s.begin_window(static_cast<uint64_t>(config().seed), at_.step, G * T);
  for (int64_t first = 0; first < G; first += B) {
    const int64_t count = std::min(B, G - first);
    data_.train->fill(at_.samples + first, count, tokens, targets);
    // A last, smaller micro-batch runs the planned shape; its empty rows have no targets.
    std::fill(tokens + count * T, tokens + B * T, 0);
    std::fill(targets + count * T, targets + B * T, -100);
    s.state().first_sample = first;
    s.micro(first == 0);
  }
  const auto rate = static_cast<float>(config().learning_rate * rate_factor(at_.step));
  for (float& group : s.state().learning_rate) group = rate;
  s.optimizer().prepare_step(s.state());
  s.update();

  const StepState& state = s.state();
  const double loss = state.loss_sum / static_cast<double>(state.loss_tokens);
  if (state.found_inf || !std::isfinite(loss)) {
    std::string where = "the loss";
    const ParamTable& table = setup_.model->params();
    for (int i = 0; i < table.size(); ++i)
      if (state.first_bad_element >= table[i].offset &&
          state.first_bad_element < table[i].offset + table[i].elements())
        where = fmt::format("the gradient of {}", table[i].name.view());
    not_finite_ = fmt::format("{} is not finite at step {} (loss {})", where, at_.step + 1, loss);
    return false;
  }
  ++s.state().updates;
  at_.updates = s.state().updates;
  ++at_.step;
  at_.samples += G;
  at_.window_loss += state.loss_sum;
  at_.window_tokens += state.loss_tokens;
  ++at_.window_steps;
  return true;
}

// By its length; a signal is another matter, since what is due at its step is still done.
bool Trainer::finished() const {
  if (total_ > 0 && at_.step >= total_) return true;
  return config().max_time > 0 && at_.elapsed + monotonic_seconds() - started_ >= config().max_time;
}

void Trainer::log_step(double step_seconds) {
  const double now = monotonic_seconds();
  StepMetrics m;
  m.step = at_.step;
  m.total_steps = total_;
  m.loss = at_.window_loss / static_cast<double>(std::max<int64_t>(1, at_.window_tokens));
  m.learning_rate = static_cast<double>(session_->state().learning_rate[0]);
  m.grad_norm = gradient_norm_of(session_->state());
  m.step_seconds = step_seconds;
  m.tokens_per_second = static_cast<double>(plan_.global_batch * plan_.decisions.T) / step_seconds;
  m.elapsed = at_.elapsed + now - started_;
  m.tokens_seen = at_.samples * plan_.decisions.T;
  m.epoch = static_cast<double>(at_.samples) / static_cast<double>(data_.train_samples);
  m.memory_bytes = session_->context().resident_bytes();
  m.startup_seconds = startup_;
  const int64_t done = at_.step - (resumed_ ? resumed_->position.step : 0);
  if (total_ > 0 && done > 0)
    m.remaining =
        (now - started_) / static_cast<double>(done) * static_cast<double>(total_ - at_.step);
  if (config().max_time > 0) {
    const double left = std::max(0.0, config().max_time - m.elapsed);
    m.remaining = m.remaining < 0 ? left : std::min(m.remaining, left);
  }
  // The last line also holds the steps since the one before; a run that a signal stops keeps them
  // in its checkpoint instead, so that the curve does not show the interruption.
  const bool due = at_.step % config().logging_steps == 0 || last_;
  if (!due) {
    log_->live(m);
    return;
  }
  log_->step(m);
  startup_ = -1;
  at_.window_loss = 0;
  at_.window_tokens = 0;
  at_.window_steps = 0;
}

void Trainer::evaluate() {
  if (plan_.decisions.eval_batch <= 0 || data_.eval_samples <= 0) return;
  const StepState saved = session_->state();
  const EvalResult r = evaluate_samples(*session_, data_, data_.eval_samples);
  session_->state() = saved;
  log_->evaluation(at_.step, r.loss, std::exp(r.loss), r.seconds, r.tokens);
  if (at_.best_eval_loss < 0 || r.loss < at_.best_eval_loss) at_.best_eval_loss = r.loss;
  sample();
}

void Trainer::sample() {
  if (!sampler_) return;
  const StepState saved = session_->state();
  sample_text_.assign(config().sample_prompt);
  GenerationOptions options;
  options.max_new_tokens = config().sample_tokens;
  if (const auto eos = setup_.tokenizer->eos_id()) options.stop_token = *eos;
  generate(*session_, *sampler_, sample_prompt_, options, [&](int32_t token) {
    sample_text_.append(setup_.tokenizer->token_bytes(token));
    return true;
  });
  session_->state() = saved;
  // The last token may end within a character.
  sample_text_.resize(utf8_complete_prefix(sample_text_));
  log_->say(fmt::format("  sample: {}", sanitize_utf8(sample_text_)));
}

void Trainer::add_model_files(const std::string& folder, DType dtype) const {
  save_model_config(*setup_.model, folder, dtype);
  // Copied from what was written before the start: making it again would take memory of the
  // runtime.
  if (setup_.tokenizer)
    fs::copy(config().output_dir + "/tokenizer", folder,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
}

std::string Trainer::checkpoint() {
  RunPosition position = at_;
  position.elapsed += monotonic_seconds() - started_;
  return checkpoints_->write(position, pinned(), hyperparameters(config(), total_),
                             [&](const std::string& f) { add_model_files(f, DType::f32); });
}

void Trainer::write_final() {
  const std::string path = config().output_dir + "/final", folder = path + ".tmp";
  std::error_code error;
  fs::remove_all(folder, error);
  fs::create_directories(folder, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to create {}", folder), error.message(),
         "free disk space");
  session_->save_model(folder + "/model.safetensors", *final_layout_);
  add_model_files(folder, config().save_dtype == "bf16" ? DType::bf16 : DType::f32);
  sync_folder(folder);
  replace_folder(folder, path);
}

void Trainer::write_memory_json(bool done) {
  nlohmann::json j = {{"planned_engine_bytes", plan_.engine_bytes},
                      {"measured_engine_bytes", session_->context().resident_bytes()},
                      {"planned_runtime_bytes", plan_.runtime_bytes},
                      {"measured_runtime_bytes", runtime_measured_},
                      {"allocations_after_start", nullptr},
                      {"transient_allocations", nullptr},
                      {"finished", done},
                      {"categories", plan_json(plan_)["categories"]}};
  if (allocation_watch::available()) {
    j["allocations_after_start"] = allocation_watch::breaches();
    j["transient_allocations"] = allocation_watch::transient();
  }
  write_json_file(config().output_dir + "/memory.json", j);
}

void Trainer::write_report(bool done) {
  report_.finished = done;
  report_.title = config().output_dir;
  report_.sample_text = sample_text_;
  if (session_) {
    report_.measured_engine_bytes = session_->context().resident_bytes();
    report_.measured_runtime_bytes = runtime_measured_;
  }
  if (log_) read_metrics(config().output_dir, report_);
  if (log_ && allocation_watch::available())
    report_.allocations_after_start = allocation_watch::breaches();
  write_atomic(config().output_dir + "/report.html", report_html(plan_, report_));
}

// Writes what says what this run is, beside what it goes on from, if that is so.
void Trainer::prepare() {
  const std::string& dir = config().output_dir;
  if (resumed_) {
    const std::string removed = remove_later_checkpoints(dir, resumed_->position.step);
    if (!removed.empty())
      fmt::print("Removed {}: they are not of the run that goes on from {}.\n", removed,
                 resumed_->folder);
    at_ = resumed_->position;
  } else if (config().overwrite) {
    remove_old_run(dir);
  }
  adopt_new_tokens(dir);
  if (setup_.tokenizer) setup_.tokenizer->save(dir + "/tokenizer");
  write_atomic(dir + "/config.resolved.yaml", resolved_yaml(config()));
  write_json_file(dir + "/plan.json", plan_json(plan_));
  write_report(false);
  checkpoints_ = std::make_unique<CheckpointWriter>(*session_, dir, config().save_total_limit);
  final_layout_ = std::make_unique<SafetensorsLayout>(
      weights_layout(*setup_.model, config().save_dtype == "bf16" ? DType::bf16 : DType::f32));
  log_ = std::make_unique<RunLog>(dir, resumed_ ? resumed_->position.step : -1);
  if (!config().sample_prompt.empty()) {
    sample_prompt_ = setup_.tokenizer->encode(config().sample_prompt);
    sample_text_.reserve(static_cast<size_t>(config().sample_tokens) * 64 + 4096);
    sampler_ = std::make_unique<Sampler>(
        setup_.tokenizer->vocab_size(),
        SamplingOptions{config().sample_temperature, config().sample_top_k, config().sample_top_p,
                        static_cast<uint64_t>(config().seed)});
  }
}

void Trainer::start_log() {
  log_->say(fmt::format("Data: {}; {} samples of {} tokens to train on, {} held out", data_.text,
                        data_.train_samples, plan_.decisions.T, data_.eval_samples));
  log_->say(fmt::format("Weights: {}", resumed_ ? "resumed from " + resumed_->folder
                                       : setup_.model_folder.empty()
                                           ? "random initialisation"
                                           : "read from " + setup_.model_folder));
  log_->say(fmt::format("Checkpoints: {} each{}", human_bytes(checkpoints_->bytes()),
                        config().save_steps > 0
                            ? fmt::format(", every {} steps", config().save_steps)
                            : std::string(", only when interrupted")));
  runtime_measured_ = process_private_bytes() - session_->context().resident_bytes();
  log_->say(fmt::format("memory reserved: {} B of engine, resident {} B", plan_.engine_bytes,
                        session_->context().resident_bytes()));
}

// After a signal: the step was finished.
int Trainer::stopped() {
  log_->say(fmt::format(
      "Stopped at step {}; saved {}.\nTo go on: snug train --config {} resume=latest", at_.step,
      checkpoint(), shell_word(config().output_dir + "/config.resolved.yaml")));
  allocation_watch::step_done();
  allocation_watch::stop();
  write_memory_json(false);
  write_report(false);
  return 75;
}

// Neither input nor program are wrong: training failed, which is exit code 1.
int Trainer::diverged() {
  allocation_watch::stop();
  std::string skipped;
  const auto latest = latest_checkpoint(config().output_dir, &skipped);
  log_->say(fmt::format("Training failed at step {}; {}", at_.step + 1,
                        latest ? "the last checkpoint is " + *latest : "there is no checkpoint"));
  fmt::print(stderr,
             "diverged: expected finite losses and gradients\n  found: {}\n  try:   a smaller "
             "learning_rate, max_grad_norm=1.0, or check the data{}\n",
             not_finite_, latest ? "; resume=latest goes on from " + *latest : "");
  write_memory_json(false);
  write_report(false);
  return 1;
}

// The step that could not be read was not done: what was learned before it is whole and is saved.
int Trainer::data_lost(const DataLost& error) {
  log_->say(at_.step == 0 ? std::string("Stopped before the first step.")
                          : fmt::format("Stopped at step {}; saved {}", at_.step, checkpoint()));
  allocation_watch::stop();
  write_memory_json(false);
  write_report(false);
  fmt::print(stderr, "{}{}\n", error.what(),
             at_.step == 0
                 ? std::string()
                 : fmt::format("\n  then:  snug train --config {} resume=latest",
                               shell_word(config().output_dir + "/config.resolved.yaml")));
  return 1;
}

int Trainer::run() {
  check_output_dir();
  if (resumed_) apply_pins(*resumed_, setup_);
  plan_ = make_plan(setup_.request);
  if (!plan_.fits && resumed_)
    fail(ErrorCode::out_of_memory,
         fmt::format("memory of at least {} B for micro-batches of {} and head chunks of {} rows, "
                     "which {} pins",
                     plan_.minimum_bytes, resumed_->pinned.micro_batch, resumed_->pinned.head_rows,
                     resumed_->folder),
         fmt::format("memory of {} B", plan_.budget),
         fmt::format("memory={}, recompute=block, or allow=[micro_batch,head_rows], which changes "
                     "the order of sums",
                     plan_.minimum_bytes));
  if (!plan_.fits) refuse_plan(plan_);
  fmt::print("{}", plan_text(plan_));
  std::fflush(stdout);
  clock_.lap("plan");

  // Until everything that can be wrong with the input was looked at, an existing folder is left as
  // it is but for the tokens, which wait beside those of the run that may be there.
  const std::string new_tokens = new_tokens_folder(config().output_dir);
  NewFolder folder(config().output_dir);
  std::error_code error;
  fs::remove_all(new_tokens, error);
  NewFolder new_data(new_tokens);
  data_ = prepare_data(config(), setup_.tokenizer, setup_.model->spec().V, plan_.decisions.T,
                       new_tokens, true);
  clock_.lap("data");
  data_fingerprint_ = data_fingerprint(*data_.train);
  total_ = total_steps();
  if (resumed_) {
    check_data(*resumed_, pinned());
    note_changes(*resumed_, hyperparameters(config(), total_));
  }
  schedule_ = std::make_unique<LearningRateSchedule>(
      schedule_config(config(), total_ > 0 ? total_ : kClockSteps));

  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  clock_.lap("checks");
  reserve();
  if (stop_requested) return 130;  // nothing was done yet, and nothing stays
  folder.keep();
  new_data.keep();
  prepare();
  clock_.lap("files");
  start_log();
  allocation_watch::start();
  try {
    return steps();
  } catch (const DataLost& lost) {
    return data_lost(lost);
  }
}

int Trainer::steps() {
  if (!resumed_) evaluate();
  clock_.lap("evaluation");
  startup_ = clock_.seconds();
  log_->say(clock_.text());
  allocation_watch::step_done();
  started_ = monotonic_seconds();
  double before = started_;
  last_ = finished();
  while (!last_ && !stop_requested) {
    if (!optimizer_step()) return diverged();
    last_ = finished();
    const double now = monotonic_seconds();
    log_step(now - before);
    // Before the checkpoint, which is then at the end of the step and does not repeat it.
    if (last_ || (config().eval_steps > 0 && at_.step % config().eval_steps == 0)) evaluate();
    // The last step is saved too, so that a run can be made longer.
    if (config().save_steps > 0 && (at_.step % config().save_steps == 0 || last_))
      log_->say(fmt::format("  saved {}", checkpoint()));
    allocation_watch::step_done();
    before = monotonic_seconds();
  }
  if (stop_requested) return stopped();
  write_final();
  allocation_watch::step_done();
  allocation_watch::stop();
  runtime_measured_ = process_private_bytes() - session_->context().resident_bytes();
  write_memory_json(true);
  write_report(true);
  const int64_t measured = session_->context().resident_bytes();
  log_->say(
      fmt::format("planned = measured: {} B planned, {} B resident, difference {} B; allocations "
                  "after start: {}",
                  plan_.engine_bytes, measured, measured - plan_.engine_bytes,
                  allocation_watch::available() ? std::to_string(allocation_watch::breaches())
                                                : std::string("not counted in this build")));
  log_->say(fmt::format("Model folder: {0}/final\nReport: {0}/report.html", config().output_dir));
  return 0;
}

}  // namespace

int train(const RunConfig& config) {
  return Trainer(config).run();
}

}  // namespace snug
