// Which weights are the best by their validation loss, and what is said and kept of it. The start
// is no result: it is what steps are compared with, and is not kept.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/checkpoint/checkpoint_seal.h"
#include "tools/infer/evaluate.h"
#include "tools/trainer/train_run.h"

namespace snug {

// The start included; -1: nothing was evaluated.
double TrainRun::lowest_eval_loss() const {
  if (at_.start_eval_loss < 0) return at_.best_eval_loss;
  return at_.best_eval_loss < 0 ? at_.start_eval_loss
                                : std::min(at_.start_eval_loss, at_.best_eval_loss);
}

void TrainRun::measure() {
  const StepState saved = session_->state();
  at_.evaluation_due = true;  // if data is lost now, the checkpoint knows what is missing
  const EvalResult r =
      evaluate_samples(*session_, data_, data_.eval_samples, metrics_ ? &*metrics_ : nullptr);
  at_.evaluation_due = false;
  session_->state() = saved;
  log_->evaluation({.step = at_.step,
                    .tokens = r.tokens,
                    .loss = r.loss,
                    .perplexity = std::exp(r.loss),
                    .seconds = r.seconds,
                    .epoch = epoch(),
                    .metrics = r.metrics});
  // As transformers' EarlyStoppingCallback: any lower loss is the new best, one that is lower by
  // more than the threshold starts the count again.
  const bool finite = std::isfinite(r.loss);
  const double lowest = lowest_eval_loss();
  const bool gain = finite && (lowest < 0 || lowest - r.loss > config().early_stopping_threshold);
  at_.evals_without_gain = gain ? 0 : at_.evals_without_gain + 1;
  if (finite && at_.step == 0) {
    at_.start_eval_loss = r.loss;
  } else if (finite && (at_.best_eval_loss < 0 || r.loss < at_.best_eval_loss)) {
    at_.best_eval_loss = r.loss;
    at_.best_eval_step = at_.step;
  }
  evaluated_loss_ = r.loss;
  evaluated_step_ = at_.step;
}

bool TrainRun::stopped_early() const {
  return config().early_stopping_patience > 0 &&
         at_.evals_without_gain >= config().early_stopping_patience;
}

// Whether this step was evaluated and no checkpoint has a lower loss. What there was before the
// first step is no result.
bool TrainRun::best_so_far() const {
  return at_.step > 0 && evaluated_step_ == at_.step && std::isfinite(evaluated_loss_) &&
         (at_.best_saved_loss < 0 || evaluated_loss_ < at_.best_saved_loss);
}

// The weights that final/ is to hold, in place of the last ones. False if there are none to hold:
// the last are not fit for it and the best not there.
bool TrainRun::load_best() {
  if (!config().load_best_model_at_end) return true;
  const auto last_ones = [&](const std::string& why) {
    const bool fit = bad_weights_.empty();
    log_->say(fmt::format("Best model: {}{}", why, fit ? "; final/ holds the last weights" : ""));
    return fit;
  };
  if (at_.best_saved_step < 0) return last_ones("nothing was evaluated");
  const std::string folder = checkpoint_folder(at_.best_saved_step);
  if (at_.best_saved_step != at_.step) {
    if (!checkpoint_complete(folder)) return last_ones(fmt::format("{} is gone", folder));
    if (const auto damage = find_checkpoint_damage(folder))
      return last_ones(fmt::format("{} is not as it was written", damage->file));
    weights_replaced_ = true;
    load_weights(session_->context(), *setup_.model, folder + "/model.safetensors",
                 session_->resting());
  }
  evaluated_loss_ = at_.best_saved_loss;
  evaluated_step_ = at_.step;
  log_->say(fmt::format("Best model: {} with a validation loss of {:.4f}; final/ holds its weights",
                        folder, at_.best_saved_loss));
  return true;
}

// The validation loss before the first step may be lower than that of what final/ holds.
void TrainRun::tell_better_start() const {
  if (at_.start_eval_loss < 0 || evaluated_step_ != at_.step ||
      !(evaluated_loss_ > at_.start_eval_loss))
    return;
  log_->say(fmt::format(
      "Warning: the validation loss was {:.4f} before the first step and is {:.4f} for final/; the "
      "weights of the start are {}. A smaller learning_rate may help.",
      at_.start_eval_loss, evaluated_loss_,
      setup_.model_folder.empty() ? "not kept" : "those of " + setup_.model_folder));
}

}  // namespace snug
