// Optimizer: turns gradients into new weights. One recorded op updates all spans of a state store
// and takes every number that changes from step to step from the StepState tensor, so one recording
// is valid for every step.
//
// A step, as the caller runs it:
//   host     state.updates = updates applied so far; state.learning_rate[group] = ...;
//            optimizer.prepare_step(state)
//   program  gradient_norm(ctx, gradients, store.spans(), state); clip(ctx, state, max_grad_norm);
//            optimizer.update(ctx, targets, store, state)
//   host     if (!state.found_inf) ++updates
//
// Arithmetic is that of PyTorch's classes of the same name (torch.optim.SGD, Adam, AdamW, RMSprop,
// Adagrad) in fp32, or of the paper that the file of an optimizer names (optim/rules).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/memory/context.h"
#include "engine/memory/step_state.h"
#include "engine/seams/state_store.h"
#include "engine/seams/update.h"

namespace snug {

// Numbers of an optimizer by name, as optim_args gives them (optim/settings.h).
using OptimArgs = std::vector<std::pair<std::string, double>>;

// Parameters with a rate or a decay of their own.
struct OptimGroup {
  double rate = 1;           // of the step's rate
  double weight_decay = -1;  // below 0: that of the parameter's own group
};
inline constexpr int kMostOptimGroups = 12;

// Names and defaults are those of Hugging Face's TrainingArguments where it has them.
struct OptimizerConfig {
  std::string name = "adamw";
  double learning_rate = 5e-5;  // base rate; update() reads the step's rate from StepState
  double adam_beta1 = 0.9;      // also of lion, whose usual second one is 0.99
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double weight_decay = 0;  // for spans of group kGroupDecay only
  double sgd_momentum = 0;
  bool sgd_nesterov = false;
  double sgd_dampening = 0;
  OptimArgs args;                  // of optimizers with settings of their own
  std::vector<OptimGroup> groups;  // at most kMostOptimGroups
  std::vector<int> group_of;       // by parameter: 0: none of them, k: groups[k - 1]; empty: none
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  const std::string& name() const { return config_.name; }
  const OptimizerConfig& config() const { return config_; }  // name without alias

  // One fp32 value per parameter each, in the order of the store's states; PyTorch's names.
  const std::vector<Name>& state_names() const { return state_names_; }

  // Host side, before the program: fills the bias corrections from state.updates.
  virtual void prepare_step(StepState& state) const = 0;

  // A recorded op for every window of the store, or of `windows`. For every span: gradient *
  // (clip_factor / loss_scale), then the update of master and states; then weights = round(master).
  // If found_inf is set only the weights are written, from the master as it is: the bits they have,
  // or that a window of weights, which is only written, has to have. Elements outside the spans are
  // never touched. When state.updates is 0 the states are taken as zero whatever they hold, so they
  // need no initialisation. The result does not depend on the threads. Throws shape or unsupported
  // (dtypes) if the views or the store do not belong together.
  virtual void update(Context& ctx, const UpdateTargets& targets, StateStore& store,
                      const View& state, WindowRange windows = {}) const = 0;

 protected:
  Optimizer(OptimizerConfig config, const std::vector<const char*>& state_names);

 private:
  OptimizerConfig config_;
  std::vector<Name> state_names_;
};

// By name or Hugging Face alias. Throws usage on an unknown name (listing the known ones), on
// values that PyTorch refuses, and on settings that the chosen optimizer would ignore.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);

std::vector<std::string> optimizer_names();  // without aliases

}  // namespace snug
