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
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/memory/context.h"
#include "engine/memory/step_state.h"
#include "engine/seams/state_store.h"
#include "engine/seams/update.h"

namespace snug {

// Numbers of an optimizer by name, as optim_args gives them (optim/settings.h).
using OptimArgs = std::vector<std::pair<std::string, double>>;

// How states rest; the rules themselves see floats. 8 bits: the dynamic maps of bitsandbytes in
// blocks of 256; 4 bits: the maps of torchao in blocks of 128 (quant/). bf16 is rounded at random, by
// a draw of (seed, step, state, element): to the nearest one, a mean of squares would stop to fall
// where a step changes it by less than half a unit, 1 / 512.
enum class StateForm : uint8_t { f32, bf16, codes8, codes4 };

// A form as names and keys have it: all that knows forms but for the loops and kernels of bf16.
struct StateFormFacts {
  StateForm form;
  const char* word;          // of the key optim_state
  std::string_view ends[2];  // of a name of optim that asks for it
  const char* codecs[2];     // of quant/: of states, and of squares; null: no codes
  const char* doc;           // what the key says of it; or empty
};
std::span<const StateFormFacts> state_forms();  // in the order of StateForm
const char* to_string(StateForm form);

// Tensors with fewer elements keep states in f32 where others have codes, as in bitsandbytes. The
// whole tensor counts, wherever its pieces are.
inline constexpr int64_t kLeastCoded = 4096;

// Parameters with a rate or a decay of their own.
struct OptimGroup {
  double rate = 1;           // of the step's rate
  double weight_decay = -1;  // below 0: that of the parameter's own group
};
inline constexpr int kMostOptimGroups = 12;

// A matrix of a parameter that is one by itself: of rows that lie one behind the other. `head`: the rows
// of a head, of queries and keys; else 0.
struct OptimPiece {
  int64_t rows;
  int64_t head = 0;
};

// What an update is for: a step, or only to go from the weights that are trained to those that are kept,
// or back (Optimizer::move).
enum class WeightsMove : uint8_t { none, to_kept, to_trained };

// Names and defaults are those of Hugging Face's TrainingArguments where it has them.
struct OptimizerConfig {
  std::string name = "adamw";
  StateForm state = StateForm::f32;  // a name with _8bit, _4bit or _bf16 behind says it too
  std::vector<char> state_in_f32;    // by parameter, of states in codes: not these; empty: none
  double learning_rate = 5e-5;       // base rate; update() reads the step's rate from StepState
  double adam_beta1 = 0.9;           // also of lion, whose usual second one is 0.99
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double weight_decay = 0;  // for spans of group kGroupDecay only
  double sgd_momentum = 0;
  bool sgd_nesterov = false;
  double sgd_dampening = 0;
  OptimArgs args;                  // of optimizers with settings of their own
  std::vector<OptimGroup> groups;  // at most kMostOptimGroups
  std::vector<int> group_of;       // by parameter: 0: none of them, k: groups[k - 1]; empty: none
  // By parameter: the matrices of it, of the layers between embedding and head; none: of all others. For
  // optimizers that look at matrices.
  std::vector<std::vector<OptimPiece>> pieces;
  WeightsMove moves = WeightsMove::none;  // of what move() runs, which is no optimizer of its own
  bool along =
      false;  // nor is what takes the steps of optim/directed.h, whose gradients are directions
};

// A state of an optimizer. Of squares, or sums of them: no number of it is below 0.
inline constexpr bool kSquares = true;
struct OptimState {
  OptimState(const char* n, bool s = false) : name(n), squares(s) {}  // NOLINT: a name is one
  const char* name;
  bool squares;
};

// What an update of an element is made of: itself; all of its parameter, which is then served whole;
// that, with states of matrices that have a number a row and a column (optim/factored.h); a matrix of it
// (optim/muon.h); a block of it, such as a row (optim/adam_mini.h). All but the first are served whole.
enum class OptimReach : uint8_t { element, parameter, factored, matrix, blocks };

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  const std::string& name() const { return config_.name; }
  const OptimizerConfig& config() const { return config_; }  // name without alias

  // One value per parameter each, in the order of the store's states; PyTorch's names.
  const std::vector<Name>& state_names() const { return state_names_; }
  // The same as a store of `table` holds them.
  StateSet states(const ParamTable& table) const;

  // Host side, before the program: fills the bias corrections from state.updates.
  virtual void prepare_step(StepState& state) const = 0;

  // A recorded op for every window of the store, or of `windows`. For every span: gradient *
  // (clip_factor / loss_scale), then the update of master and states; then weights = round(master).
  // A master in bf16 is the weights: updated in f32, rounded at random by (seed, step, element). If
  // found_inf is set only the weights are written, from the master: the bits they have, or that a
  // window of weights, which is only written, has to have. Elements outside the spans are never
  // touched. At state.updates 0 states are taken as zero whatever they hold. The result does not
  // depend on the threads. Throws shape or unsupported (dtypes) on views that do not fit together.
  virtual void update(Context& ctx, const UpdateTargets& targets, StateStore& store,
                      const View& state, WindowRange windows = {}) const = 0;

  // Whether the weights to evaluate and to keep are others than those that it trains: an average, which
  // parameters and states say (schedule_free_*).
  bool keeps_others() const { return to_kept_ != nullptr; }
  // Of such: a recorded op for every window, after which the parameters, and the weights rounded from them,
  // are those to keep, or again those of training. There and back gives every bit they had; nothing
  // else changes. As update(), but that gradients are not read. It runs on a StepState without
  // found_inf, between the steps.
  void move(Context& ctx, const UpdateTargets& targets, StateStore& store, const View& state,
            WeightsMove where) const;

 protected:
  Optimizer(OptimizerConfig config, const std::vector<OptimState>& states,
            OptimReach reach = OptimReach::element);

  std::unique_ptr<Optimizer> to_kept_, to_trained_;  // of keeps_others()

 private:
  OptimizerConfig config_;
  std::vector<Name> state_names_;
  std::vector<bool> squares_;  // by state
  OptimReach reach_;
};

// By name or Hugging Face alias. Throws usage on an unknown name (listing the known ones), on
// values that PyTorch refuses, and on settings that the chosen optimizer would ignore.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config);

std::vector<std::string> optimizer_names();  // without aliases

}  // namespace snug
