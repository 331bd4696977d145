// What a training run finds in its output_dir, takes over from a run before it, and leaves aside.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "engine/core/error.h"
#include "engine/io/files.h"
#include "engine/io/json.h"
#include "layers/models/adapter_files.h"
#include "tools/checkpoint/aside.h"
#include "tools/checkpoint/checkpoint_seal.h"
#include "tools/checkpoint/output_folder.h"
#include "tools/checkpoint/run_input.h"
#include "tools/session/tell.h"
#include "tools/setup/chat_setup.h"
#include "tools/trainer/run_history.h"
#include "tools/trainer/train_run.h"

namespace snug {

namespace fs = std::filesystem;

// Of a run that does not go on where it was.
void TrainRun::check_new_folder() {
  const std::string& dir = config().output_dir;
  if (fork_)
    check_forked_output(dir, resumed_->folder);
  else if (!resumed_)
    check_new_output(dir, config().overwrite, input_of_old_run(config()));
}

// How to start from the beginning where this folder holds a run.
std::string TrainRun::again() const {
  return input_of_old_run(config()).empty() ? "overwrite=true" : "another output_dir";
}

void TrainRun::check_output_dir() {
  const std::string& dir = config().output_dir;
  if (dir.empty())
    fail(ErrorCode::usage, "output_dir, where the run is written", "none", "output_dir=run1");
  if (config().resume.empty()) {
    check_new_folder();  // so that a folder of others is left alone
    lock_.take(dir);
    check_new_folder();
    return;
  }
  std::string folder = config().resume;
  const bool latest = folder == "latest";
  fork_ = !latest && !lies_in(folder, dir);
  if (!fork_) lock_.take(dir);
  if (latest) {
    // A run that was stopped before its first checkpoint is a run, which only overwrite replaces.
    const std::string from_the_start =
        fmt::format("{} to start from the beginning",
                    holds_run(dir) ? again() + ", without resume," : "leave resume out");
    const FoundCheckpoint found = find_intact_checkpoint(dir);
    if (found.folder.empty() && !found.damaged.empty())
      fail(ErrorCode::data, fmt::format("a checkpoint in {} that is as it was written", dir),
           found.damaged, "a copy of it from elsewhere; without one " + from_the_start);
    if (found.folder.empty())
      fail(ErrorCode::usage, fmt::format("a complete checkpoint in {} to resume", dir),
           found.torn.empty() ? "none" : "only torn ones: " + found.torn,
           file_exists(dir + "/final/config.json")
               ? fmt::format(
                     "model={}/final and another output_dir, without resume, to train on from "
                     "its weights",
                     dir)
               : from_the_start);
    if (!found.torn.empty()) tell(stdout, "Skipped torn checkpoints: {}\n", found.torn);
    if (!found.damaged.empty()) tell(stdout, "Skipped damaged checkpoints: {}\n", found.damaged);
    damaged_ = found.damaged_folders;
    folder = found.folder;
  }
  // A name alone is one of output_dir only if it says so.
  std::error_code none;
  if (!latest && !fs::exists(folder, none) && checkpoint_complete(dir + "/" + folder))
    fail(ErrorCode::usage, "resume as latest or the path of a checkpoint",
         fmt::format("{}, which is not in the current folder", folder),
         fmt::format("resume={}/{}", dir, folder));
  resumed_ = read_checkpoint(folder, latest);
  if (!fork_) return check_resumed_output(dir);
  check_new_folder();
  lock_.take(dir);
  check_new_folder();
}

// Text that becomes other tokens is other data; of the two the tokenizer is to blame.
void TrainRun::check_tokenizer() const {
  const std::string before = resumed_->folder;
  if (!setup_.tokenizer || !file_exists(before + "/tokenizer.json")) return;
  const uint64_t was = Tokenizer::load(before).fingerprint(), is = setup_.tokenizer->fingerprint();
  if (was == is) return;
  fail(ErrorCode::usage, fmt::format("tokenizer as in {}: fingerprint {:016x}", before, was),
       fmt::format(
           "{}, fingerprint {:016x}",
           config().tokenizer.empty()
               ? "that of " + setup_.model_folder
               : fmt::format("tokenizer: {} ({})", config().tokenizer, config().where("tokenizer")),
           is),
       fmt::format("tokenizer={}", shell_word(before)));
}

// The model that stays as it is has to be there when the adapters are used.
void TrainRun::check_base() {
  if (setup_.model_folder.empty())
    fail(ErrorCode::usage, "a model folder with weights, which adapters go on top of",
         config().init == "scratch"
             ? fmt::format("init: scratch ({})", config().where("init"))
             : fmt::format("model: {}, which begins with random weights",
                           config().model.empty() ? "a map" : config().model),
         "model=FOLDER");
  if (resumed_ && resumed_->pinned.adapters.empty()) return;  // apply_pins refuses it
  setup_.base = weights_fingerprint(setup_.model_folder);
  if (resumed_ && resumed_->pinned.base != setup_.base)
    fail(ErrorCode::usage,
         fmt::format("the base of {}: weights {}", resumed_->folder, resumed_->pinned.base),
         fmt::format("{}, weights {}", setup_.model_folder, setup_.base),
         "model= of the folder that it was trained on");
}

// Token files are read where they are, and those of the run itself may be what it is to learn from.
void TrainRun::keep_own_tokens() {
  const std::string& dir = config().output_dir;
  const std::string input = input_within(config(), {tokens_folder(dir)});
  own_tokens_ = !input.empty();
  std::error_code error;
  if (own_tokens_ && !fs::is_empty(new_tokens_folder(dir), error))
    fail(ErrorCode::usage,
         fmt::format("input outside of {}, where tokens of other text are to be put",
                     tokens_folder(dir)),
         input, "a copy of it elsewhere");
}

// Text becomes tokens on rank 0 alone, as long as it takes; they are read where all see them.
void TrainRun::read_data(const std::string& new_tokens) {
  if (ranks_) ranks_->check_shared(new_tokens);
  std::optional<RunRanks::Alive> alive;
  if (ranks_ && leads()) alive.emplace(*ranks_);
  if (!leads()) meet("the tokens");
  data_ = setup_.rows ? rows_data(setup_.rows)
                      : prepare_data(config(), setup_.tokenizer, setup_.model->spec().V,
                                     text_length(), new_tokens, true, prepare_room(), !leads(),
                                     false, setup_.model->front());
  alive.reset();
  if (leads()) meet("the tokens");
}

// Where a rank that follows keeps its own plan, log and memory.
void TrainRun::make_own_folder() {
  std::string& dir = setup_.config.output_dir;
  dir = fmt::format("{}/{}/{}", lead_dir_, kRanksFolder, ranks_->rank());
  std::error_code error;
  fs::create_directories(dir, error);
  if (error)
    fail(ErrorCode::device, fmt::format("to create {}", dir), error.message(), "free disk space");
}

// What makes the new folder one that stands for itself: the checkpoint, the best one before it, and
// the log.
void TrainRun::take_over() {
  const std::string& dir = config().output_dir;
  const auto copy = [&](const std::string& from, int64_t step) {
    const std::string to = checkpoint_folder(step), built = to + ".tmp";
    std::error_code error;
    fs::create_directory(built, error);  // what is wrong shows when a file is written there
    for (const auto& entry : fs::directory_iterator(from, error))
      if (entry.is_regular_file())
        copy_file(entry.path().string(), built + "/" + entry.path().filename().string());
    check_checkpoint_bytes(built);  // nothing of it was removed meanwhile
    sync_folder(built);
    replace_folder(built, to);
  };
  // First, so that a checkpoint that is there has its log.
  RunSinks sinks = run_sinks(config().report_to);
  sinks.loss_scaling = setup_.model->precision().loss_scaling();
  restore_log(resumed_->folder, dir, sinks);
  const RunPosition& at = resumed_->position;
  copy(resumed_->folder, at.step);
  // Beside it, or in its run where that was set aside.
  for (const char* const up : {"/..", "/../.."}) {
    const std::string best =
        fmt::format("{}{}/{}{}", resumed_->folder, up, kCheckpointPrefix, at.best_saved_step);
    if (at.best_saved_step < 0 || checkpoint_complete(checkpoint_folder(at.best_saved_step))) break;
    if (checkpoint_complete(best) && !find_checkpoint_damage(best)) copy(best, at.best_saved_step);
  }
  tell(stdout, "Copied {} to {}, with the log up to its step\n", resumed_->folder, dir);
}

// Writes what says what this run is, beside what it goes on from, if that is so.
void TrainRun::prepare() {
  require_own_output();
  bad_weights_.reserve(256);  // said of a step, and kept to the end
  const ModelSpec& spec = setup_.model->spec();
  if (data_.rows && data_.eval_samples > 0 && has_metrics(spec.head))
    metrics_.emplace(spec, data_.eval_samples + samples_per_step(setup_.request));
  const std::string& dir = config().output_dir;
  Aside aside(dir);
  if (resumed_) {
    for (const std::string& folder : damaged_) {
      const std::string kept = folder + std::string(kDamagedEnd);
      aside.move(fs::path(kept).filename().string());  // of the same step, from before
      std::error_code error;
      fs::rename(folder, kept, error);
      if (!error) tell(stdout, "Kept as {}\n", kept);
    }
    if (!fork_ && leads()) set_later_aside(aside, dir, resumed_->position.step);
    at_ = resumed_->position;
    at_.loss_scale = session_->state().loss_scale;  // a fixed one may be another now
    watch_.restore(at_.watch);
    if (!at_.evaluation_due && checkpoint_complete(checkpoint_folder(at_.step)))
      saved_step_ = at_.step;
    if (at_.best_by != best_by() || at_.greater_is_better != greater_is_better()) {
      tell(stdout, "Note: the best is by {} from here on; what was best by {} is forgotten.\n",
           config().metric_for_best_model, at_.best_by);
      at_.start_eval_loss = at_.best_eval_loss = at_.best_saved_loss = -1;
      at_.best_eval_step = 0;
      at_.best_saved_step = -1;
      at_.evals_without_gain = 0;
    }
    if (at_.best_saved_step >= 0 && !checkpoint_complete(checkpoint_folder(at_.best_saved_step))) {
      tell(stdout, "Note: {}, the best one so far, is gone; the best from here on is kept.\n",
           checkpoint_folder(at_.best_saved_step));
      at_.best_saved_loss = -1;
      at_.best_saved_step = -1;
    }
  } else if (config().overwrite && leads()) {
    remove_old_run(dir);
  } else if (leads()) {
    remove_torn_files(dir);
  }
  at_.best_by = best_by();
  at_.greater_is_better = greater_is_better();
  if (leads()) adopt_new_tokens(dir, own_tokens_);
  // Of ranks that a run before had and this one has not.
  for (int r = plan_.decisions.ranks; leads() && r < kMostRanks; ++r) {
    std::error_code ignored;
    fs::remove_all(fmt::format("{}/{}/{}", dir, kRanksFolder, r), ignored);
  }
  if (setup_.tokenizer && leads()) {
    setup_.tokenizer->save(dir + "/tokenizer", setup_.model->spec().P);
    save_chat_files(config(), setup_.model_folder, setup_.tokenizer, dir + "/tokenizer");
  }
  if (leads()) write_config();
  write_json_file(dir + "/plan.json", plan_json(plan_));
  std::optional<WriterRank> writer;  // of ranks that share what they keep
  if (ranks_ && plan_.decisions.zero > 0)
    writer = {ranks_->rank(), ranks_->size(),
              [this] { ranks_->meet("the folder of a checkpoint"); }, [this] { ranks_->go_on(); },
              [this](int rank, double began) {
                return ranks_->broken(rank, "its part of a checkpoint", began);
              }};
  if (leads() || writer) {
    checkpoints_ = std::make_unique<CheckpointWriter>(
        *session_, lead_dir_, config().save_total_limit, plan_.save_background, writer);
    checkpoints_->set_guard([this] { require_own_output(); });
    session_->set_update_gate(&checkpoints_->gate());
  }
  final_layout_ = std::make_unique<SafetensorsLayout>(weights_layout(
      *setup_.model, config().save_dtype == "bf16" ? DType::bf16 : DType::f32, setup_.base));
  recorder_ = std::make_unique<StepRecorder>(plan_, config().trace);
  RunSinks sinks = run_sinks(config().report_to);
  sinks.loss_scaling = setup_.model->precision().loss_scaling();
  log_ = std::make_unique<RunLog>(dir, resumed_ ? resumed_->position.step : -1, sinks,
                                  leads() ? &aside : nullptr);
  if (aside.used()) {
    sync_folder(dir);
    tell(stdout, "Set aside in {}, which lie behind {}\n", aside.text(), resumed_->folder);
  }
  if (!config().sample_prompt.empty()) {
    sample_prompt_ = setup_.tokenizer->encode(config().sample_prompt);
    // What the cache of the model's positions has no room for is not generated.
    const int64_t most = std::min(config().sample_tokens, text_room(*session_));
    sample_text_.reserve(static_cast<size_t>(most) * 64 + 4096);
    sampler_ = std::make_unique<Sampler>(
        setup_.tokenizer->vocab_size(),
        SamplingOptions{config().sample_temperature, config().sample_top_k, config().sample_top_p,
                        static_cast<uint64_t>(config().seed)});
  }
  write_report(false);
}

}  // namespace snug
