// How the states of an optimizer rest: which codec each of them has, and which tensors keep f32.
#include "engine/core/error.h"
#include "optim/adam_mini.h"
#include "optim/directed.h"
#include "optim/optimizer.h"
#include "optim/percentile.h"
#include "optim/resting.h"

namespace snug {

const char* to_string(StateForm form) {
  if (form == StateForm::f32) return "fp32";
  if (form == StateForm::bf16) return "bf16";
  if (form == StateForm::codes8) return "8bit";
  require(form == StateForm::codes4, "a form of states");
  return "4bit";
}

const Codec* codec_of_state(StateForm form, bool squares) {
  // Found once: a step takes nothing from the heap.
  static const Codec* const eight[] = {&codec("dynamic8"), &codec("dynamic8_unsigned")};
  static const Codec* const four[] = {&codec("dynamic4"), &codec("linear4_unsigned")};
  if (form == StateForm::codes8) return eight[squares ? 1 : 0];
  if (form == StateForm::codes4) return four[squares ? 1 : 0];
  return nullptr;
}

namespace {

// Of the second state: of Muon's matrices nothing; of Adam-mini one number a block.
std::vector<int64_t> second_counts(const OptimizerConfig& config, OptimReach reach,
                                   const ParamTable& table) {
  std::vector<int64_t> counts(static_cast<size_t>(table.size()), -1);
  for (int i = 0; i < table.size(); ++i) {
    const auto p = static_cast<size_t>(i);
    const std::span<const OptimPiece> pieces = pieces_of(config, i);
    if (reach == OptimReach::matrix) {
      if (!pieces.empty()) counts[p] = 0;
      continue;
    }
    counts[p] = blocks_of(table[i], pieces);
  }
  return counts;
}

}  // namespace

StateSet Optimizer::states(const ParamTable& table) const {
  StateSet set(state_names_);
  const bool rings = clips_by_percentile(config_);
  set.whole = reach_ != OptimReach::element || rings;
  if (reach_ == OptimReach::factored)
    for (int i = 0; i < table.size(); ++i)
      set.rows.push_back(table[i].shape.rank() == 2 ? table[i].rows : 0);
  if (reach_ == OptimReach::matrix || reach_ == OptimReach::blocks)
    set.counts = {{}, second_counts(config_, reach_, table)};
  if (rings) {
    set.counts.resize(state_names_.size());
    set.counts.back().assign(static_cast<size_t>(table.size()), kRingNorms);
    set.states_in_f32.resize(state_names_.size());
    set.states_in_f32.back() = 1;
  }
  const StateForm how = config_.state;
  if (how == StateForm::f32 || state_names_.empty()) return set;
  if (how == StateForm::bf16) {
    set.form = {DType::bf16, 16, 0, nullptr};
    return set;
  }
  for (const bool squares : squares_) set.codecs.push_back(codec_of_state(how, squares)->name);
  const Codec& first = *codec_of_state(how, squares_[0]);
  set.form = {DType::u8, first.bits, first.block, nullptr};
  set.in_f32.assign(static_cast<size_t>(table.size()), 0);
  for (int i = 0; i < table.size(); ++i) {
    const auto p = static_cast<size_t>(i);
    const bool asked = p < config_.state_in_f32.size() && config_.state_in_f32[p] != 0;
    set.in_f32[p] = asked || table[i].real_elements() < kLeastCoded ? 1 : 0;
  }
  return set;
}

void Optimizer::move(Context& ctx, const UpdateTargets& targets, StateStore& store,
                     const View& state, WeightsMove where) const {
  require(keeps_others() && where != WeightsMove::none, "an optimizer that keeps other weights");
  UpdateTargets t = targets;
  t.gradients = {};
  t.first = 0;
  t.brought = nullptr;
  (where == WeightsMove::to_kept ? *to_kept_ : *to_trained_).update(ctx, t, store, state);
}

}  // namespace snug
