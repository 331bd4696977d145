// What a training run writes, and how it ends.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <iterator>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/device/processors.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "engine/text/unicode.h"
#include "layers/models/adapter_files.h"
#include "tools/checkpoint/output_folder.h"
#include "tools/checkpoint/pinning.h"
#include "tools/config/make_schedule.h"
#include "tools/infer/generator.h"
#include "tools/session/tell.h"
#include "tools/setup/chat_setup.h"
#include "tools/setup/same_files.h"
#include "tools/trainer/allocation_watch.h"
#include "tools/trainer/run_end.h"
#include "tools/trainer/run_story.h"
#include "tools/trainer/train_run.h"
#include "tools/trainer/trainer_state.h"

namespace snug {

namespace fs = std::filesystem;

void TrainRun::add_model_files(const std::string& folder, DType dtype) const {
  if (setup_.peft) write_adapter_config(*setup_.model, *setup_.peft, folder);
  // A PEFT folder says nothing of labels: beside an adapter of an encoder lies the whole config.
  if (!setup_.peft || setup_.model->rows_head()) save_model_config(*setup_.model, folder, dtype);
  // Copied from what was written before the start: making it again would take memory of the
  // runtime.
  if (!setup_.tokenizer) return;
  const std::string from = config().output_dir + "/tokenizer";
  const auto broken = [&](const std::string& found) {
    fail(ErrorCode::device, fmt::format("to copy {} to {}", from, folder), found,
         "leave the files of a run where they are while it goes");
  };
  // Files only: what else others put there is none of the model's.
  std::error_code error;
  bool whole = false;
  for (fs::directory_iterator it(from, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code unknown;
    if (!it->is_regular_file(unknown)) continue;
    whole = whole || it->path().filename() == "tokenizer.json";
    try {
      copy_file(it->path().string(), folder + "/" + it->path().filename().string());
    } catch (const Error& e) {
      // The run's own files, not its input: it ends like a run whose disk is full.
      if (e.code() != ErrorCode::data) throw;
      broken(fmt::format("{}: {}", it->path().string(), e.found()));
    }
  }
  if (error) broken(error.message());
  if (!whole) broken("no tokenizer.json in it");
}

// The log in the form of Hugging Face's Trainer.
void TrainRun::write_state(const std::string& folder) const {
  const double samples =
      static_cast<double>(samples_per_step(setup_.request)) * static_cast<double>(total_);
  // The last step of epochs that were asked for takes what it lacks from the next.
  double epochs = std::ceil(samples / static_cast<double>(data_.train_samples));
  if (config().num_train_epochs > 0)
    epochs = std::min(epochs, std::ceil(config().num_train_epochs));
  // All three of one step: the best of the checkpoints, and before there is one of what was
  // evaluated.
  const bool saved = at_.best_saved_step >= 0;
  std::optional<double> best;
  if (saved || at_.best_eval_loss >= 0) best = saved ? at_.best_saved_metric : at_.best_metric;
  if (best && config().metric_for_best_model == "eval_perplexity") best = std::exp(*best);
  const auto steps = [&](int64_t every) {
    return every == kEachEpoch ? ceil_div(data_.train_samples, samples_per_step(setup_.request))
                               : every;
  };
  write_trainer_state(
      folder + "/trainer_state.json", log_->metrics_path(),
      {.step = at_.step,
       .max_steps = total_,
       .epoch = epoch(),
       .num_train_epochs = epochs,
       .logging_steps = config().logging_steps,
       .eval_steps = steps(config().eval_steps),
       .save_steps = steps(config().save_steps),
       .train_batch_size = plan_.decisions.micro_batch,
       .tokens_seen = at_.samples * plan_.decisions.T,
       .best_metric = best,
       .best_step = saved ? at_.best_saved_step : at_.best_eval_step,
       .best_checkpoint = saved ? checkpoint_folder(at_.best_saved_step) : std::string()});
}

std::string TrainRun::checkpoint_folder(int64_t step) const {
  return fmt::format("{}/{}{}", lead_dir_, kCheckpointPrefix, step);
}

void TrainRun::require_own_output() const {
  if (!lock_.lost()) return;
  fail(ErrorCode::device,
       fmt::format("the output_dir {} that this run began in", config().output_dir),
       "another folder or file of that name; it is left alone",
       "leave the folder of a run where it is while the run goes on");
}

// False as of evaluate().
bool TrainRun::sample() {
  if (!sampler_) return true;
  const StepState saved = session_->state();
  sample_text_.assign(config().sample_prompt);
  GenerationOptions options;
  options.max_new_tokens = config().sample_tokens;
  if (const auto eos = setup_.tokenizer->eos_id()) options.rules.stop_tokens = {*eos};
  try {
    generate(*session_, *sampler_, sample_prompt_, options, [&](int32_t token) {
      sample_text_.append(setup_.tokenizer->token_bytes(token));
      return true;
    });
  } catch (const Error& error) {
    if (error.code() != ErrorCode::data) throw;  // of logits without a finite one
    fmt::format_to(std::back_inserter(bad_weights_), "a sample at step {} with logits that are {}",
                   at_.step, error.found());
    return false;
  }
  session_->state() = saved;
  // The last token may end within a character.
  sample_text_.resize(utf8_complete_prefix(sample_text_));
  const std::string text = sanitize_utf8(sample_text_);
  log_->say(fmt::format("  sample: {}", text));
  log_->sample(at_.step, text);
  return true;
}

// Begins the checkpoint of this step, unless it was begun before.
void TrainRun::save() {
  require_own_output();
  if (saved_step_ == at_.step) return;
  session_->keep_weights();
  if (checkpoints_) tell_saved(checkpoints_->wait());
  if (best_so_far()) {
    at_.best_saved_loss = evaluated_loss_;
    at_.best_saved_metric = evaluated_metric_;
    at_.best_saved_step = at_.step;
  }
  saved_step_ = at_.step;
  if (!checkpoints_) return;  // rank 0 has all of it
  RunPosition position = at_;
  position.elapsed += monotonic_seconds() - started_;
  if (plan_.decisions.delayed_update) position.late = session_->late_step();
  log_->sync();          // milliseconds on a disk
  require_own_output();  // so again
  checkpoints_->begin(position, pinned(), hyperparameters(config(), total_),
                      [&](const std::string& f) {
                        add_model_files(f, setup_.model->precision().master);
                        write_state(f);
                      });
  tell_saved(checkpoints_->poll());  // without a background it is there
}

void TrainRun::tell_saved(const std::optional<CheckpointWriter::Saved>& saved) {
  if (!saved) return;
  log_->say(fmt::format("  saved {} ({} in {:.2f} s, training waited {:.2f} s)", saved->folder,
                        human_bytes(saved->bytes), saved->seconds, saved->stall));
}

std::string TrainRun::save_and_wait() {
  save();
  if (checkpoints_) checkpoints_->wait();
  meet("the checkpoint");
  return checkpoint_folder(at_.step);
}

void TrainRun::write_final() {
  require_own_output();
  const std::string path = lead_dir_ + "/final", folder = path + ".tmp";
  std::error_code error;
  if (leads()) {
    fs::remove_all(folder, error);
    // Not with its parents: a new output_dir would look like a run without its checkpoints.
    fs::create_directory(folder, error);
  }
  if (error)
    fail(ErrorCode::device, fmt::format("to create {}", folder), error.message(),
         "free disk space");
  // Each rank's pieces, which rank 0 then puts together.
  const bool pieces = checkpoints_ && checkpoints_->in_pieces();
  if (pieces) {
    meet("the folder of final/");
    checkpoints_->write_weights(folder);
    meet("the weights of final/");
  }
  if (!leads()) return;
  const std::string file = folder + "/" + weights_file(*setup_.model);
  session_->save_model(file, *final_layout_, pieces ? file : "");
  if (pieces) checkpoints_->remove_pieces(folder);
  add_model_files(folder, config().save_dtype == "bf16" ? DType::bf16 : DType::f32);
  write_json_file(folder + "/" + kFinalFacts,
                  {{"step", weights_replaced_ ? at_.best_saved_step : at_.step}});
  sync_folder(folder);
  require_own_output();
  replace_folder(folder, path);
}

namespace {

// What the measured bytes of memory.json count.
std::string counted_text(Place place) {
  const std::string host =
      "anonymous pages that are resident: of the arenas (mincore), and as runtime all others of "
      "the "
      "process (RssAnon less the arenas'); pages of mapped files, such as weights and checkpoints "
      "that are read, are the kernel's cache and count in none";
  if (place != Place::cuda) return host;
  return "device memory of the process, the arena and as runtime the rest; of the host " + host;
}

}  // namespace

void TrainRun::write_memory_json(bool done, const std::string& failure) {
  nlohmann::json j = {
      {"planned_engine_bytes", plan_.engine_bytes},
      {"measured_engine_bytes", session_->context().resident_bytes()},
      {"planned_host_bytes", plan_.host_bytes},
      {"measured_host_bytes", session_->context().host_resident_bytes()},
      {"planned_disk_bytes", plan_.disk.bytes},
      {"planned_runtime_bytes", plan_.runtime_bytes},
      {"measured_runtime_bytes", runtime_measured_},
      {"measured_preparing_bytes", nullptr},
      {"measured_is", counted_text(plan_.place)},
      {"allocations_after_start", nullptr},
      {"transient_allocations", nullptr},
      {"finished", done},
      {"failure", failure.empty() ? nlohmann::json(nullptr) : nlohmann::json(failure)},
      {"categories", plan_json(plan_)["categories"]}};
  if (const TierFile* const disk = session_->context().disk())
    j["disk"] = {
        {"measured_bytes", disk->resident_bytes()},
        {"direct", disk->direct()},
        {"moved_bytes", disk->moved_bytes()},
        {"bytes_per_second",
         disk->moved_bytes() > 0
             ? nlohmann::json(static_cast<double>(disk->moved_bytes()) / disk->moved_seconds())
             : nlohmann::json(nullptr)}};
  if (checkpoints_)
    j["checkpoints"] = {{"written", checkpoints_->written()},
                        {"bytes_each", checkpoints_->bytes()},
                        {"write_seconds", checkpoints_->write_seconds()},
                        {"stall_seconds", checkpoints_->stall_seconds()}};
  if (setup_.model->precision().loss_scaling())
    j["loss_scaling"] = {{"loss_scale", at_.loss_scale}, {"skipped_steps", at_.step - at_.updates}};
  if (session_->context().settings().graphs) j["graphs"] = session_->context().graphs();
  if (runtime_measured_ < 0) j["measured_runtime_bytes"] = nullptr;
  // Of the whole process while text became tokens, before the arena was there.
  if (data_.preparing_bytes > 0) j["measured_preparing_bytes"] = data_.preparing_bytes;
  if (plan_.place == Place::cuda) j["gpu"] = gpu_bytes_.json();
  if (allocation_watch::available()) {
    j["allocations_after_start"] = allocation_watch::breaches();
    j["transient_allocations"] = allocation_watch::transient();
  }
  write_json_file(config().output_dir + "/memory.json", j);
}

// What a run leaves that did not come to its end.
void TrainRun::write_unfinished(const std::string& failure) {
  if (lock_.lost()) return;
  write_state(config().output_dir);
  write_memory_json(false, failure);
  write_report(false);
}

void TrainRun::write_report(bool done) {
  if (!leads()) return;
  // Its own, so that nothing of it stays.
  const std::string& dir = config().output_dir;
  ReportRun run = log_ ? read_run(dir) : ReportRun{};
  run.title = dir;
  run.finished = done;
  run.total_steps = total_;
  run.ladder = report_.ladder;
  run.op_times = recorder_ && recorder_->recorded() ? recorder_->times() : report_.op_times;
  if (session_) {
    run.measured_engine_bytes = session_->context().resident_bytes();
    run.measured_host_bytes = session_->context().host_resident_bytes();
    run.measured_runtime_bytes = runtime_measured_;
    if (const TierFile* const disk = session_->context().disk())
      run.disk_bytes = disk->resident_bytes();
  }
  if (log_ && allocation_watch::available())
    run.allocations_after_start = allocation_watch::breaches();
  const std::string page = report_html(plan_, run);
  if (lock_.lost()) return;  // a page takes a while to draw
  write_atomic(dir + "/report.html", page);
  if (config().trace && recorder_ && recorder_->recorded())
    write_atomic(dir + "/trace.json", trace_text(plan_, recorder_->trace()));
}

// While the run goes: of its time this takes a hundredth at most, but for the first page.
void TrainRun::refresh_report() {
  constexpr double kShare = 0.01;
  const double now = monotonic_seconds();
  if (!leads() || lock_.lost() || report_seconds_ > kShare * (now - started_)) return;
  write_report(false);
  report_seconds_ += monotonic_seconds() - now;
}

// What the log says of this process, for its first line.
std::string TrainRun::leg_text() const {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char when[32];
  std::strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
  const std::string machine =
      plan_.computes_on.defined()
          ? plan_.computes_on.gpu
          : fmt::format("{}, {} thread{}, {}", processor_name(), plan_.threads,
                        plan_.threads == 1 ? "" : "s", plan_instruction_set());
  const nlohmann::json leg = {
      {"from_step", at_.step},
      {"began", when},
      {"machine", machine},
      {"planned_engine_bytes", plan_.engine_bytes},
      {"planned_host_bytes", plan_.host_bytes},
      {"planned_runtime_bytes", plan_.runtime_bytes},
      {"budget_bytes", plan_.budget > 0 ? nlohmann::json(plan_.budget) : nlohmann::json(nullptr)},
      {"plan", plan_sentence(plan_)}};
  return leg.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// That this run went on from a checkpoint, or took the place of another, is no wish for the next
// one that uses the file.
void TrainRun::write_config() const {
  RunConfig saved = config();
  saved.resume.clear();
  saved.overwrite = false;
  write_atomic(config().output_dir + "/config.resolved.yaml", resolved_yaml(saved));
}

// The command that goes on. It finds the run's own copy of a tokenizer that is gone by then.
std::string TrainRun::resume_command() const {
  const std::string& dir = config().output_dir;
  // A word with = is a key, and one that begins with a dash a flag.
  if (dir.find('=') != std::string::npos)
    return fmt::format("snug train --config {} resume=latest",
                       shell_word(dir + "/config.resolved.yaml"));
  // A run's configuration says how its ranks meet, and of MPI they are mpirun's.
  const std::string launcher =
      config().transport == "mpi" ? fmt::format("mpirun -n {} ", config().ranks) : "";
  return launcher + "snug train " + shell_word(dir.starts_with("-") ? "./" + dir : dir);
}

void TrainRun::start_log() {
  // The one that is there is of the leg before, which may have finished.
  if (resumed_) write_memory_json(false);
  leg_ = leg_text();
  if (leads()) begin_leg(config().output_dir, leg_, resumed_.has_value());
  if (data_.rows) {
    log_->say(fmt::format(
        "Data: {}; {} {} to train on, {} to evaluate", data_.text, data_.train_samples,
        data_.rows->pairs().any() ? data_.rows->pairs().nouns() : "rows", data_.eval_samples));
    for (const std::string& note : data_.rows->notes()) log_->say("Note: " + note);
  } else {
    log_->say(fmt::format("Data: {}; {} samples of {} tokens to train on, {} held out", data_.text,
                          data_.train_samples, text_length(), data_.eval_samples));
  }
  if (leads())
    for (const std::string& note : same_files(config())) log_->say("Note: " + note + ".");
  log_->say(fmt::format("Weights: {}", resumed_ ? "resumed from " + resumed_->folder
                                       : setup_.model_folder.empty()
                                           ? "random initialisation"
                                           : "read from " + setup_.model_folder));
  if (const RunEnd end = resumed_ ? run_end(config(), at_, total_, data_.train_samples,
                                            samples_per_step(setup_.request))
                                  : RunEnd{};
      !end.why.empty())
    log_->say(fmt::format(
        "Nothing is left to train: {} is at step {}, and {}. final/ is written from it.\n"
        "To train on: {}",
        resumed_->folder, at_.step, end.why, end.goes_on));
  if (checkpoints_)
    log_->say(
        fmt::format("Checkpoints: {} each{}", human_bytes(checkpoints_->bytes()),
                    config().save_steps > 0 ? fmt::format(", every {} steps", config().save_steps)
                    : config().save_steps == kEachEpoch ? std::string(", at the end of every epoch")
                                                        : std::string(", only when interrupted")));
  runtime_measured_ = runtime_now();
  log_->say(fmt::format("memory reserved: {} B of engine, resident {} B", plan_.engine_bytes,
                        session_->context().resident_bytes()));
  if (plan_.host_bytes > 0)
    log_->say(fmt::format("host memory reserved: {} B, resident {} B", plan_.host_bytes,
                          session_->context().host_resident_bytes()));
  if (const TierFile* const disk = session_->context().disk())
    log_->say(fmt::format(
        "disk reserved: {} B in {}, {}", plan_.disk.bytes, disk->folder(),
        disk->direct() ? "read and written directly"
                       : "through the page cache, since its file system reads nothing directly"));
}

void TrainRun::say_disk() const {
  const TierFile* const disk = session_->context().disk();
  if (disk == nullptr || disk->moved_bytes() == 0) return;
  log_->say(fmt::format("disk: {} B planned, {} B on it; {} read and written at {:.2f} GB/s",
                        plan_.disk.bytes, disk->resident_bytes(), human_bytes(disk->moved_bytes()),
                        static_cast<double>(disk->moved_bytes()) / disk->moved_seconds() / 1e9));
}

const char* TrainRun::untrained_key() const {
  if (!data_.rows) return "packing_boundaries";
  return setup_.model->spec().head == HeadKind::masked_lm ? "mlm_probability" : "labels of -100";
}

std::string TrainRun::untrained_source() const {
  const std::string key = untrained_key();
  return key == "labels of -100" ? key : fmt::format("{}, {}", key, config().where(key));
}

void TrainRun::tell_untrained() const {
  if (at_.untrained > 0)
    log_->say(fmt::format("Skipped {} of {} steps: no sample of theirs has a target ({})",
                          at_.untrained, at_.step, untrained_source()));
}

// After a signal: the step was finished.
int TrainRun::stopped() {
  tell_untrained();
  log_->say(fmt::format("Stopped at step {}; saved {}.\nTo go on: {}", at_.step, save_and_wait(),
                        resume_command()));
  watch_allocations();
  allocation_watch::stop();
  write_unfinished();
  return 75;
}

// It was too late to refuse: training failed, which is exit code 1.
int TrainRun::training_failed() {
  allocation_watch::stop();
  try {
    if (checkpoints_) checkpoints_->wait();
  } catch (const Error&) {
    if (!lock_.lost()) throw;
  }
  const auto latest = own_latest();
  // These two are seen when the step is done; the others keep the next one from being done.
  const bool done = !diverging_.empty() || !bad_weights_.empty();
  log_->say(fmt::format("Training failed at step {}; {}", at_.step + (done ? 0 : 1),
                        latest ? "the last checkpoint is " + *latest : "there is no checkpoint"));
  const bool diverged = !diverging_.empty();
  tell(stderr, "diverged: expected {}\n  found: {}\n  try:   {}{}\n",
       diverged ? "a loss that does not diverge (loss_watchdog: stop)"
                : "finite losses and gradients",
       diverged ? diverging_ : bad_weights_ + not_finite_,
       at_.step == 0 && !bad_weights_.empty()
           ? "other weights to begin with, or precision=fp32"
           : "a smaller learning_rate, max_grad_norm=1.0, or check the data",
       latest ? "; resume=latest goes on from " + *latest : "");
  write_unfinished(diverged ? diverging_ : bad_weights_ + not_finite_);
  return 1;
}

// The run came to its end, and no step of it changed a weight: final/ would be the initial weights.
int TrainRun::nothing_learned() {
  allocation_watch::stop();
  write_unfinished("no step changed a weight");
  if (at_.untrained == at_.step) {
    tell(stderr,
         "data: expected at least one step with a target to train ({})\n"
         "  found: all {} steps without: nothing was learned, and final/ was not written\n"
         "  try:   {} with more steps, a larger global_batch_size, or {}\n",
         untrained_source(), at_.step, again(),
         !data_.rows                                        ? "without packing_boundaries"
         : setup_.model->spec().head == HeadKind::masked_lm ? "a larger mlm_probability"
                                                            : "rows with labels");
    return 1;
  }
  tell(stderr,
       "diverged: expected at least one step whose gradients are finite at its loss scale\n"
       "  found: all {} steps skipped, the loss scale {} by now: nothing was learned, and "
       "final/ was not written\n"
       "  try:   {} with a smaller init_scale (the default is 65536), or with "
       "precision=bf16\n",
       at_.step, loss_scale_text(at_.loss_scale), again());
  return 1;
}

// The step that could not be read was not done: what was learned before it is whole and is saved.
int TrainRun::data_lost(const DataLost& error) {
  log_->say(at_.step == 0 ? std::string("Stopped before the first step.")
                          : fmt::format("Stopped at step {}; saved {}", at_.step, save_and_wait()));
  allocation_watch::stop();
  write_unfinished();
  tell(stderr, "{}{}\n", error.what(),
       at_.step == 0 ? std::string() : "\n  then:  " + resume_command());
  return 1;
}

std::optional<std::string> TrainRun::own_latest() const {
  return lock_.lost() ? std::nullopt : latest_checkpoint(lead_dir_);
}

// output_dir is gone: what was learned goes into a new one of that name, or beside it if another
// folder has the name, with all that was logged.
bool TrainRun::rescue() {
  const std::string dir = lock_.lost()
                              ? fmt::format("{}-{}", normal_path(config().output_dir), getpid())
                              : config().output_dir;
  std::error_code code;
  // With the best weights in place of the last ones there is no state to save any more.
  if (ranks_ || weights_replaced_ || at_.step == 0 || fs::exists(dir, code) ||
      !fs::create_directories(dir, code))
    return false;
  try {
    lock_.take(dir);
    setup_.config.output_dir = lead_dir_ = dir;
    checkpoints_->set_output_dir(dir);
    log_->recover(dir);
    if (setup_.tokenizer) {
      setup_.tokenizer->save(dir + "/tokenizer", setup_.model->spec().P);
      save_chat_files(config(), setup_.model_folder, setup_.tokenizer, dir + "/tokenizer");
    }
    write_config();
    write_json_file(dir + "/plan.json", plan_json(plan_));
    at_.best_saved_loss = -1;
    at_.best_saved_step = saved_step_ = -1;
    save_and_wait();
    return true;
  } catch (const Error&) {
    return false;  // the error that led here says what to do
  }
}

// The system refused something: what is complete stays, and there is no more than one can write.
int TrainRun::broken_off(const Error& error) {
  allocation_watch::stop();
  try {
    if (checkpoints_) tell_saved(checkpoints_->wait());
  } catch (const Error&) {  // the same again
  }
  // The reason, whatever was refused first.
  std::string what = error.what();
  try {
    require_own_output();
  } catch (const Error& other) {
    what = other.what();
  }
  if (!leads()) ranks_->give_up(what);  // for rank 0 to say
  const bool lost = lock_.lost(), saved = rescue();
  const auto latest = lost && !saved ? std::nullopt : own_latest();
  log_->say(fmt::format("Stopped at step {}; {}", at_.step,
                        saved && latest
                            ? fmt::format("output_dir {}: saved {} in a new one",
                                          lost ? "was another one" : "was gone", *latest)
                        : latest ? "the last complete checkpoint is " + *latest
                        : lost   ? "what it wrote is where its output_dir was moved to"
                                 : "there is no checkpoint"));
  tell(stderr, "{}{}\n", what, latest ? "\n  then:  " + resume_command() : std::string());
  return 1;
}

}  // namespace snug
