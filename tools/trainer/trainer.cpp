#include "tools/trainer/trainer.h"

#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>

#include "engine/core/error.h"
#include "engine/data/token_file.h"
#include "engine/device/busy.h"
#include "engine/device/cuda.h"
#include "engine/device/nvml.h"
#include "layers/models/adapter_files.h"
#include "optim/clip.h"
#include "optim/schedule.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/checkpoint/loss_watch.h"
#include "tools/checkpoint/output_folder.h"
#include "tools/checkpoint/pinning.h"
#include "tools/cli/terminal.h"
#include "tools/config/make_schedule.h"
#include "tools/planner/batch_room.h"
#include "tools/planner/offers.h"
#include "tools/planner/plan_search.h"
#include "tools/report/report.h"
#include "tools/session/device_choice.h"
#include "tools/session/tell.h"
#include "tools/session/warm_up.h"
#include "tools/setup/run_data.h"
#include "tools/setup/setup.h"
#include "tools/trainer/allocation_watch.h"
#include "tools/trainer/forecast.h"
#include "tools/trainer/run_log.h"
#include "tools/trainer/train_run.h"

namespace snug {

namespace fs = std::filesystem;

namespace {
volatile std::sig_atomic_t stop_requested = 0;
volatile std::sig_atomic_t stop_repeated = 0;
volatile std::sig_atomic_t save_requested = 0;
void on_save(int) {
  save_requested = 1;
}
// The second one stops at once. SIGHUP does not count: a closing session sends it twice, or close
// to a SIGTERM, and of two that wait the kernel may hand out either first.
void on_signal(int signal) {
  if (signal != SIGHUP) {
    if (stop_repeated) _exit(130);
    stop_repeated = 1;
  }
  stop_requested = 1;
}

}  // namespace

Pinned TrainRun::pinned() const {
  Pinned p = make_pinned(setup_, plan_.decisions, data_, data_fingerprint_);
  p.kernels = plan_.kernels;
  p.attention = plan_.attention;
  p.computes_on = plan_.computes_on;
  return p;
}

// A skipped step is not one of the schedule.
void TrainRun::set_rate() {
  const double elapsed = ranks_ ? lead_elapsed_ : at_.elapsed + monotonic_seconds() - started_;
  const int64_t step = schedule_step(config(), total_, at_.updates, elapsed);
  const auto rate = static_cast<float>(config().learning_rate * schedule_->factor(step));
  for (float& group : session_->state().learning_rate) group = rate;
}

int64_t TrainRun::targets_of_step() const {
  const int64_t G = samples_per_step(setup_.request);
  if (data_.rows) return data_.rows->trained(at_.samples / G);
  return config().packing_boundaries ? data_.train->trained_targets(at_.samples, G)
                                     : G * text_length();
}

// A step without a target: its samples count as seen, and the weights, the optimizer's count and
// the loss scale stay as they are.
void TrainRun::skip_step() {
  set_rate();
  ++at_.step;
  at_.samples += samples_per_step(setup_.request);
  ++at_.window_steps;
  if (at_.untrained++ == 0)
    log_->say(fmt::format(
        "  step {}: no sample of it has a target ({}): skipped, as all such steps will be",
        at_.step, untrained_key()));
}

void TrainRun::micro_steps() {
  const int64_t G = plan_.global_batch, B = plan_.decisions.micro_batch, T = plan_.decisions.T;
  Session& s = *session_;
  int32_t* tokens = s.tokens().as<int32_t>();
  int32_t* targets = s.targets().as<int32_t>();
  int32_t* starts = s.document_start_or_null();
  const int64_t ranks = plan_.decisions.ranks, rank = ranks_ ? ranks_->rank() : 0;
  for (int64_t i = 0; i < plan_.accumulation; ++i) {
    const int64_t first = (i * ranks + rank) * B;
    const int64_t count = std::clamp<int64_t>(G - first, 0, B);  // 0: others have the last ones
    if (count > 0) data_.train->fill(at_.samples + first, count, tokens, targets, starts);
    if (starts) std::fill(starts + count * T, starts + B * T, 0);
    // A last, smaller micro-batch runs the planned shape; its empty rows have no targets.
    std::fill(tokens + count * T, tokens + B * T, 0);
    std::fill(targets + count * T, targets + B * T, -100);
    s.state().first_sample = first;
    s.micro(i == 0, i + 1 == plan_.accumulation);
  }
}

// As many micro-steps as the step's rows need: windows are samples to what draws random numbers.
void TrainRun::micro_steps_of_rows(int64_t step) {
  const int64_t windows = data_.rows->windows(step), B = plan_.decisions.micro_batch;
  const int64_t ranks = plan_.decisions.ranks, rank = ranks_ ? ranks_->rank() : 0;
  const int64_t rounds = (windows - 1) / (B * ranks) + 1;
  const int64_t planned = rounds * ranks * B * plan_.decisions.T, filled = data_.rows->tokens(step);
  int64_t computed = 0;
  for (int64_t i = 0; i < rounds * ranks; ++i)
    computed += data_.rows->extent(step, i * B, *session_).places();
  computed_rows_ += computed;
  filled_rows_ += filled;
  empty_share_ = 1 - static_cast<double>(filled) / static_cast<double>(planned);
  idle_share_ = 1 - static_cast<double>(filled) / static_cast<double>(computed);
  session_->train_weights();
  data_.rows->compare(false, step, *session_);
  for (int64_t i = 0; i < rounds; ++i) {
    const int64_t first = (i * ranks + rank) * B;
    data_.rows->fill(step, first, *session_);  // behind the last window: nothing
    session_->state().first_sample = first;
    session_->micro(i == 0, i + 1 == rounds);
    if (plan_.decisions.pairs.any()) add_preferences(*session_, B, preferences_);
  }
}

// Tokens that are learned from, of these many samples.
double TrainRun::tokens_of(int64_t samples) const {
  const double each =
      data_.rows ? data_.rows->mean_length() : static_cast<double>(plan_.decisions.T);
  return static_cast<double>(samples) * each;
}

// False if the loss or a gradient is not finite; the step is then not done.
bool TrainRun::optimizer_step(int64_t trained) {
  const int64_t G = samples_per_step(setup_.request);
  Session& s = *session_;
  s.begin_window(static_cast<uint64_t>(config().seed), at_.step, trained);
  preferences_ = {};
  set_rate();  // backward may update already
  s.optimizer().prepare_step(s.state());
  if (data_.rows)
    micro_steps_of_rows(at_.samples / G);
  else
    micro_steps();
  s.update();

  const StepState& state = s.state();
  if (ranks_) ranks_->check();
  if (ranks_ && plan_.decisions.pairs.any()) preferences_ = ranks_->sum(preferences_);
  const double loss = state.loss_sum / static_cast<double>(state.loss_tokens);
  skipped_ = state.found_inf && step_skipped();
  if (!skipped_ && (state.found_inf || !std::isfinite(loss))) {
    not_finite_ = fmt::format("{} is not finite at step {} (loss {}){}", bad_place(state),
                              at_.step + 1, loss, not_finite_);
    return false;
  }
  if (!skipped_) ++s.state().updates;
  at_.updates = s.state().updates;
  at_.loss_scale = state.loss_scale;
  at_.growth_tracker = state.growth_tracker;
  ++at_.step;
  at_.samples += G;
  ++at_.window_steps;
  if (!std::isfinite(loss)) return true;  // of a skipped step
  at_.window_loss += state.loss_sum;
  at_.window_tokens += state.loss_tokens;
  if (preferences_.finite()) at_.window_pairs.add(preferences_);  // a checkpoint holds no infinity
  return true;
}

// What was not finite, first of all.
std::string TrainRun::bad_place(const StepState& state) const {
  const ParamTable& table = setup_.model->params();
  for (int i = 0; i < table.size(); ++i)
    if (table[i].trainable && state.first_bad_element >= table[i].offset &&
        state.first_bad_element < table[i].offset + table[i].elements())
      return fmt::format("the gradient of {}", table[i].name.view());
  return "the loss";
}

// After an update that found a gradient that is not finite, and so left everything as it was:
// whether a smaller loss scale may help.
bool TrainRun::step_skipped() {
  if (!setup_.model->precision().loss_scaling()) return false;
  const StepState& state = session_->state();
  const LossScaling& scaling = plan_.decisions.loss_scaling;
  const std::string scale = loss_scale_text(at_.loss_scale);
  if (scaling.exhausted(at_.loss_scale)) {
    not_finite_ = scaling.dynamic()
                      ? fmt::format(" at the smallest loss scale, {}", scale)
                      : fmt::format(
                            " at the fixed loss scale {}; loss_scale=0 lets it follow the "
                            "gradients",
                            scale);
    return false;
  }
  log_->say(
      fmt::format("  step {}: {} is not finite at the loss scale {}: skipped, the scale is {}",
                  at_.step + 1, bad_place(state), scale, loss_scale_text(state.loss_scale)));
  return true;
}

// False if the run is to end because its loss diverges.
bool TrainRun::watch() {
  if (config().loss_watchdog == "off" || skipped_) return true;
  const StepState& state = session_->state();
  const LossWatch::Verdict verdict = watch_.look(
      at_.step, state.loss_sum / static_cast<double>(state.loss_tokens), gradient_norm_of(state));
  at_.watch = watch_.state();
  if (!verdict.text.empty()) log_->say(verdict.text);
  if (!verdict.diverged || config().loss_watchdog != "stop") return true;
  constexpr std::string_view kWarning = "warning: ";  // divergence is the last line
  diverging_ = verdict.text.substr(verdict.text.rfind(kWarning) + kWarning.size());
  return false;
}

double TrainRun::epoch() const {
  return static_cast<double>(at_.samples) / static_cast<double>(data_.train_samples);
}

// By its length; a signal is another matter, since what is due at its step is still done.
bool TrainRun::finished() const {
  if (stopped_early()) return true;
  if (total_ > 0 && at_.step >= total_) return true;
  return config().max_time > 0 && at_.elapsed + monotonic_seconds() - started_ >= config().max_time;
}

void TrainRun::log_step(double step_seconds) {
  const double now = monotonic_seconds();
  // The last line also holds the steps since the one before; a run that a signal stops keeps them
  // in its checkpoint instead, so that the curve does not show the interruption.
  const int64_t every = config().logging_steps;
  const bool due = (every > 0 && at_.step % every == 0) || last_;
  StepMetrics m;
  m.step = at_.step;
  m.total_steps = total_;
  m.loss = at_.window_tokens > 0 ? at_.window_loss / static_cast<double>(at_.window_tokens)
                                 : std::numeric_limits<double>::quiet_NaN();
  m.metrics = at_.window_pairs.means(plan_.decisions.pairs.form());
  m.learning_rate = static_cast<double>(session_->state().learning_rate[0]);
  if (session_->optimizer().keeps_others() && config().warmup_steps > 0)  // its warm-up is its own
    m.learning_rate *= std::min(1.0, static_cast<double>(at_.updates) / config().warmup_steps);
  m.grad_norm =
      untrained_ ? std::numeric_limits<double>::quiet_NaN() : gradient_norm_of(session_->state());
  const bool scaling = setup_.model->precision().loss_scaling();
  if (scaling) m.loss_scale = static_cast<double>(at_.loss_scale);
  if (scaling || plan_.decisions.packing_boundaries) m.skipped_steps = at_.step - at_.updates;
  m.step_seconds = step_seconds;
  if (!untrained_) m.tokens_per_second = tokens_of(samples_per_step(setup_.request)) / step_seconds;
  if (!untrained_) m.empty_share = empty_share_, m.idle_share = idle_share_;
  m.elapsed = at_.elapsed + now - started_;
  m.tokens_seen = static_cast<int64_t>(tokens_of(at_.samples));
  m.epoch = epoch();
  m.memory_bytes = session_->context().resident_bytes();
  if (const auto gpu = pci_.empty() || !due ? std::nullopt : gpu_now(pci_)) {
    m.gpu_used_bytes = gpu->used_bytes;
    m.gpu_utilisation = gpu->utilisation;
    m.gpu_watts = gpu->watts;
  }
  m.startup_seconds = startup_;
  if (startup_ >= 0) m.leg = leg_;
  m.predicted_tokens_per_second = plan_.tokens_per_second();
  if (!untrained_ && timed_steps_++ >= 0) timed_seconds_ += step_seconds;
  m.remaining =
      remaining_seconds(now - started_, resumed_ ? resumed_->position.step : 0, at_.step, total_,
                        config().max_time > 0 ? std::max(0.0, config().max_time - m.elapsed) : -1);
  if (!due) {
    log_->live(m);
    return;
  }
  log_->step(m);
  startup_ = -1;
  at_.window_loss = 0;
  at_.window_tokens = 0;
  at_.window_pairs = {};
  at_.window_steps = 0;
}

// What is due every eval_steps. False if the weights give no finite loss or logit; nothing of them
// is to be kept then.
bool TrainRun::evaluate() {
  at_.evaluation_due = false;
  session_->keep_weights();
  if (plan_.decisions.eval_batch > 0 && data_.eval_samples > 0) {
    measure();
    if (!std::isfinite(evaluated_loss_)) {
      fmt::format_to(std::back_inserter(bad_weights_), "a validation loss of {} at step {}",
                     std::isnan(evaluated_loss_) ? "nan" : "inf", at_.step);
      return false;
    }
  }
  return sample();
}

void watch_for_save() {
  std::signal(SIGUSR1, on_save);
}

int TrainRun::run() {
  watch_for_save();
  if (ranks_) ranks_->open();
  if constexpr (kCudaBuilt)
    if (const Settings& s = setup_.request.settings; ranks_ && s.target == Place::cuda)
      ranks_->check_devices("GPU " + cuda_facts(s.gpu).pci);
  if (leads()) check_output_dir();
  if (!setup_.rows) require_given(config().train_data, "train_data");  // before the plan is shown
  if (ranks_) agree_on_request();
  if (ranks_) follow_resume();
  if (setup_.peft) check_base();
  if (resumed_) check_tokenizer();
  if (resumed_) apply_pins(*resumed_, setup_);
  check_batch_room(setup_.request);
  // Its records are gone before the arena is reserved.
  auto search = std::make_unique<PlanSearch>(setup_.request);
  plan_ = make_plan(setup_.request, *search);
  if (!plan_.fits) {
    plan_.offers = plan_offers(setup_.request, plan_, search->recordings());
    refuse_plan(plan_, resumed_ ? pinned_text(*resumed_, config().allow) : std::string());
  }
  if (resumed_) check_attention(*resumed_, plan_.attention, config());
  if (ranks_) ranks_->same("the plan", plan_hash(plan_) + resolved_yaml(config()));
  check_gpu_room(setup_.request.settings, plan_.engine_bytes);
  tell(stdout, "{}", fit_terminal(plan_text(plan_)));
  std::fflush(stdout);
  report_.op_times = forecast_times(setup_.request, plan_);
  report_.ladder = forecast_ladder(setup_.request, plan_, *search);
  search.reset();
  clock_.lap("plan");

  // Until everything that can be wrong with the input was looked at, an existing folder is left as
  // it is but for the tokens, which wait beside those of the run that may be there.
  const std::string new_tokens = new_tokens_folder(config().output_dir);
  const bool locked = lock_.held();
  require_own_output();
  std::optional<NewFolder> folder, new_data;
  if (leads()) {
    folder.emplace(config().output_dir, &lock_);
    // A folder that was not there when it was looked at may hold a whole run by now.
    if (!locked) check_new_folder();
    std::error_code error;
    fs::remove_all(new_tokens, error);
    new_data.emplace(new_tokens);
  }
  read_data(new_tokens);
  clock_.lap("data");
  if (resumed_ && !data_.rows && leads()) keep_own_tokens();
  data_fingerprint_ = data_.rows ? data_.rows->fingerprint()
                                 : data_fingerprint(*data_.train, config().packing_boundaries);
  if (ranks_) ranks_->same("the data", data_fingerprint_);
  total_ = total_steps(config(), data_.train_samples, samples_per_step(setup_.request));
  if (data_.rows)
    data_.rows->check_trained(total_);
  else
    check_trained(data_, config(), total_, plan_.global_batch);
  if (resumed_) {
    check_data(*resumed_, pinned());
    note_changes(*resumed_, hyperparameters(config(), total_));
    const std::string jump = rate_change(*resumed_, config(), total_);
    if (!jump.empty()) tell(stdout, "Note: {}.\n", jump);
  }
  const std::string idle = idle_rates(config(), total_);
  if (!idle.empty()) tell(stdout, "Warning: {}.\n", idle);
  schedule_ = std::make_unique<LearningRateSchedule>(
      schedule_config(config(), total_ > 0 ? total_ : kClockSteps));

  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  // A terminal that is closed; under nohup it stays ignored.
  if (std::signal(SIGHUP, on_signal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  clock_.lap("checks");
  reserve();
  agree();
  if (stopping()) return 130;  // nothing was done yet, and nothing stays
  if (leads()) {
    if (fork_) take_over();
    folder->keep();
    new_data->keep();
    prepare();
    meet("the run's files");
  } else {
    meet("the run's files");
    make_own_folder();
    prepare();
  }
  clock_.lap("files");
  start_log();
  learn_reference();
  allocation_watch::start();
  try {
    return steps();
  } catch (const DataLost& lost) {
    if (ranks_) throw;  // the others have not done the step either
    try {
      return data_lost(lost);
    } catch (const Error& refused) {
      if (refused.code() != ErrorCode::device) throw;
      tell(stderr, "{}\n", lost.what());
      return broken_off(refused);
    }
  } catch (const Error& refused) {
    if (refused.code() != ErrorCode::device) throw;
    return broken_off(refused);
  }
}

// Whether what comes every so many steps, or at the end of each epoch, comes with this one.
bool TrainRun::due(int64_t steps) const {
  if (steps > 0) return at_.step % steps == 0;
  const int64_t epoch = data_.train_samples, G = samples_per_step(setup_.request);
  return steps == kEachEpoch && at_.samples / epoch > (at_.samples - G) / epoch;
}

// What is due after the update of step at_.step was logged. False as of evaluate(), unless the run
// is over and final/ is to hold weights from before.
bool TrainRun::finish_step(double step_seconds) {
  // Before the checkpoint, which is then at the end of the step and does not repeat it.
  const bool evaluates = at_.evaluation_due || last_ || due(config().eval_steps);
  const bool good = !evaluates || evaluate();
  const bool early = !last_ && stopped_early(), best = config().load_best_model_at_end;
  if (!good && !((last_ || early) && best && at_.best_saved_step >= 0)) return false;
  if (early) {
    last_ = true;
    if (at_.window_steps > 0) log_step(step_seconds);  // the steps since the last line
    log_->say(fmt::format(
        "Stopped early at step {}: {} evaluations in a row without {} {} {:.4f} by more than {}",
        at_.step, at_.evals_without_gain, metric_words(), greater_is_better() ? "above" : "below",
        best_of_all().value_or(0), config().early_stopping_threshold));
  }
  // The last step is saved too, so that a run can be made longer.
  const bool due = config().save_steps != 0 && (this->due(config().save_steps) || last_);
  const bool saves = good && (due || save_ || (best && best_so_far()));
  if (saves) save();
  if (saves) save_ = false;
  if (!last_ && (evaluates || saves)) refresh_report();
  return true;
}

// What capturing a graph takes stays, as what was made at the start does.
void TrainRun::watch_allocations() {
  const int graphs = session_->context().graphs();
  if (graphs == graphs_) return allocation_watch::step_done();
  graphs_ = graphs;
  allocation_watch::start();
}

int TrainRun::steps() {
  if (!resumed_ && !evaluate()) return training_failed();
  clock_.lap("evaluation");
  startup_ = clock_.seconds();
  log_->say(clock_.text());
  watch_allocations();
  const double waited = waited_seconds();
  started_ = monotonic_seconds();
  double before = started_;
  last_ = finished();
  agree();
  if (at_.evaluation_due) {
    if (!finish_step(std::max(1e-6, monotonic_seconds() - before))) return training_failed();
    before = monotonic_seconds();
  }
  // The second step is the one of the report: the first finds cold caches. A run of one step has no
  // better one.
  int recordings = 2;
  while (!last_ && !stopping()) {
    const int64_t targets = targets_of_step();
    untrained_ = targets == 0;
    skipped_ = untrained_;
    const bool record = !untrained_ && recordings-- > 0;
    if (record) recorder_->begin_step(session_->context(), at_.step + 1);
    if (untrained_) skip_step();
    if (!untrained_ && !optimizer_step(targets)) return training_failed();
    if (record) recorder_->end_step(session_->context());
    note_free();
    last_ = finished();
    agree();
    const double now = monotonic_seconds();
    log_step(now - before);
    if (!watch()) return training_failed();
    if (!finish_step(now - before)) return training_failed();
    if (checkpoints_)
      tell_saved(checkpoints_->poll());  // if it failed, what this step owed is done
    watch_allocations();
    before = monotonic_seconds();
  }
  if (stopping() && bad_weights_.empty()) return stopped();
  if (checkpoints_) tell_saved(checkpoints_->wait());
  meet("the last checkpoint");
  require_own_output();
  if (at_.step > 0 && at_.updates == 0) return nothing_learned();
  session_->keep_weights();
  if (!load_best()) return training_failed();
  tell_better_start();
  tell_untrained();
  apply_late();
  write_final();
  meet("final/");
  require_own_output();
  write_state(config().output_dir);
  watch_allocations();
  allocation_watch::stop();
  const double busy = std::clamp((waited_seconds() - waited) / ((monotonic_seconds() - started_) *
                                                                static_cast<double>(plan_.threads)),
                                 0.0, 1.0);
  runtime_measured_ = runtime_now();
  write_memory_json(true);
  write_report(true);
  const int64_t measured = session_->context().resident_bytes();
  const int64_t host = session_->context().host_resident_bytes();
  log_->say(fmt::format(
      "planned = measured: {} B planned, {} B resident, difference {} B; {}allocations "
      "after start: {}",
      plan_.engine_bytes, measured, measured - plan_.engine_bytes,
      plan_.host_bytes > 0 ? fmt::format("host {} B planned, {} B resident, difference {} B; ",
                                         plan_.host_bytes, host, host - plan_.host_bytes)
                           : std::string(),
      allocation_watch::available() ? std::to_string(allocation_watch::breaches())
                                    : std::string("not counted in this build")));
  say_disk();
  if (timed_steps_ > 0 && timed_seconds_ > 0) {
    constexpr double kBusy = 0.05;
    const double rate = tokens_of(timed_steps_ * samples_per_step(setup_.request)) / timed_seconds_;
    log_->say(fmt::format(
        "predicted {:.0f} tokens/s ({}), measured {:.0f} over {} steps, {:.3g} % of that{}",
        plan_.tokens_per_second(), plan_.cost, rate, timed_steps_,
        100.0 * rate / plan_.tokens_per_second(),
        busy < kBusy ? std::string()
                     : fmt::format("; the machine was busy: for {:.0f} % of that time "
                                   "a thread was ready and other work had its processor",
                                   100 * busy)));
  }
  if (computed_rows_ > 0)
    log_->say(fmt::format("rows of tokens: {} computed, {:.1f} % of them empty, none padded",
                          computed_rows_,
                          100.0 * static_cast<double>(computed_rows_ - filled_rows_) /
                              static_cast<double>(computed_rows_)));
  log_->say(fmt::format("Model folder: {0}/final\nReport: {0}/report.html", config().output_dir));
  return 0;
}

bool TrainRun::stopping() const {
  return ranks_ ? stop_ : stop_requested != 0;
}

void TrainRun::agree() {
  save_ = save_ || save_requested != 0;  // until a step has saved
  save_requested = 0;
  if (!ranks_) return;
  const RunRanks::Step step =
      ranks_->agree({.stop = stop_requested != 0,
                     .last = last_,
                     .save = save_,
                     .elapsed = at_.elapsed + (started_ > 0 ? monotonic_seconds() - started_ : 0)});
  stop_ = step.stop;
  last_ = step.last;
  save_ = step.save;
  lead_elapsed_ = step.elapsed;
}

int train(const RunConfig& config) {
  outlive_readers();
  const std::unique_ptr<RunRanks> ranks = RunRanks::here(config);
  int code = 1;
  try {
    code = TrainRun(config, ranks.get()).run();
    if (ranks && code == 1) ranks->fail_run("the run has failed");
  } catch (const Error& error) {
    if (!ranks) throw;
    code = ranks->end(error);
  } catch (const std::exception& error) {
    if (ranks) ranks->give_up(error.what());
    throw;
  }
  forget_gone_reader();
  return code;
}

}  // namespace snug
