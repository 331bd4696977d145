// Which weights are the best by metric_for_best_model, and what is said and kept of it. The start is
// no result: it is what steps are compared with, and is not kept.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "layers/models/adapter_files.h"
#include "tools/checkpoint/checkpoint_seal.h"
#include "tools/infer/evaluate.h"
#include "tools/trainer/train_run.h"

namespace snug {

// A perplexity orders models as its loss does, which is what is kept.
std::string TrainRun::best_by() const {
  const std::string& name = config().metric_for_best_model;
  return name == "eval_perplexity" ? "eval_loss" : name;
}

bool TrainRun::greater_is_better() const {
  const std::string& given = config().greater_is_better;
  return given == "auto" ? !best_by().ends_with("loss") : given == "true";
}

bool TrainRun::better(double a, double b) const {
  return greater_is_better() ? a > b : a < b;
}

// The start included; none if nothing was evaluated.
std::optional<double> TrainRun::best_of_all() const {
  const bool start = at_.start_eval_loss >= 0, steps = at_.best_eval_loss >= 0;
  if (start && steps)
    return better(at_.start_metric, at_.best_metric) ? at_.start_metric : at_.best_metric;
  if (!start && !steps) return std::nullopt;
  return start ? at_.start_metric : at_.best_metric;
}

std::string TrainRun::metric_words() const {
  const std::string by = best_by();
  return by == "eval_loss" ? "a validation loss" : "an " + by;
}

void TrainRun::measure() {
  const StepState saved = session_->state();
  at_.evaluation_due = true;  // if data is lost now, the checkpoint knows what is missing
  const EvalResult r =
      evaluate_samples(*session_, data_, data_.eval_samples, metrics_ ? &*metrics_ : nullptr);
  at_.evaluation_due = false;
  session_->state() = saved;
  log_->evaluation(
      {.step = at_.step,
       .tokens = r.tokens,
       .loss = r.loss,
       .perplexity = std::exp(r.loss),
       .seconds = r.seconds,
       .epoch = epoch(),
       .metrics = r.metrics,
       .pairs = plan_.decisions.pairs.any() ? plan_.decisions.pairs.nouns() : nullptr});
  // As transformers' EarlyStoppingCallback: any better metric is the new best, one that is better
  // by more than the threshold starts the count again.
  const std::string by = best_by();
  const double metric = by == "eval_loss" ? r.loss : r.metrics.at(std::string_view(by).substr(5));
  const bool finite = std::isfinite(r.loss) && std::isfinite(metric);
  const std::optional<double> top = best_of_all();
  const bool gain =
      finite && (!top || (better(metric, *top) &&
                          std::fabs(metric - *top) > config().early_stopping_threshold));
  at_.evals_without_gain = gain ? 0 : at_.evals_without_gain + 1;
  if (finite && at_.step == 0) {
    at_.start_eval_loss = r.loss;
    at_.start_metric = metric;
  } else if (finite && (at_.best_eval_loss < 0 || better(metric, at_.best_metric))) {
    at_.best_eval_loss = r.loss;
    at_.best_metric = metric;
    at_.best_eval_step = at_.step;
  }
  evaluated_loss_ = r.loss;
  evaluated_metric_ = metric;
  evaluated_step_ = at_.step;
}

bool TrainRun::stopped_early() const {
  return config().early_stopping_patience > 0 &&
         at_.evals_without_gain >= config().early_stopping_patience;
}

// Whether this step was evaluated and no checkpoint is as good. What there was before the
// first step is no result.
bool TrainRun::best_so_far() const {
  return at_.step > 0 && evaluated_step_ == at_.step && std::isfinite(evaluated_loss_) &&
         std::isfinite(evaluated_metric_) &&
         (at_.best_saved_loss < 0 || better(evaluated_metric_, at_.best_saved_metric));
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
    load_checkpoint_weights(*session_, folder);
  }
  evaluated_loss_ = at_.best_saved_loss;
  evaluated_metric_ = at_.best_saved_metric;
  evaluated_step_ = at_.step;
  log_->say(fmt::format("Best model: {} with {} of {:.4f}; final/ holds its weights", folder,
                        metric_words(), at_.best_saved_metric));
  return true;
}

// What was before the first step may be better than what final/ holds.
void TrainRun::tell_better_start() const {
  if (at_.start_eval_loss < 0 || evaluated_step_ != at_.step ||
      !better(at_.start_metric, evaluated_metric_))
    return;
  const std::string by = best_by();
  log_->say(fmt::format(
      "Warning: {} was {:.4f} before the first step and is {:.4f} for final/; the weights of the "
      "start are {}. A smaller learning_rate may help.",
      by == "eval_loss" ? "the validation loss" : by, at_.start_metric, evaluated_metric_,
      setup_.model_folder.empty() ? "not kept" : "those of " + setup_.model_folder));
}

// The last step's update, which a checkpoint of that step has still to come, is in final/. The best
// checkpoint's weights stay as they were evaluated.
void TrainRun::apply_late() {
  if (!plan_.decisions.delayed_update || config().load_best_model_at_end) return;
  session_->apply_late();
  log_->say(
      fmt::format("Updates were one step late: final/ has that of step {} too, which was still to "
                  "come when that step was evaluated and saved",
                  at_.step));
}

}  // namespace snug
