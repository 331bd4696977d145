// How the states of an optimizer rest: the forms there are, which codec each state has, and which
// tensors keep f32.
#include <vector>

#include "engine/core/error.h"
#include "optim/adam_mini.h"
#include "optim/directed.h"
#include "optim/optimizer.h"
#include "optim/percentile.h"
#include "optim/resting.h"

namespace snug {

std::span<const StateFormFacts> state_forms() {
  static constexpr StateFormFacts forms[] = {
      {StateForm::f32, "fp32", {"_32bit"}, {}, ""},
      {StateForm::bf16, "bf16", {"_bf16"}, {}, "half; rounded at random, the same in every run"},
      {StateForm::codes8,
       "8bit",
       {"_8bit", "8bit"},  // adamw8bit is how bitsandbytes' classes are written
       {"dynamic8", "dynamic8_unsigned"},
       "blocks of 256 with their largest magnitude, as bitsandbytes; tensors below 4096 numbers, "
       "and "
       "embeddings of a model trained from scratch, keep fp32"},
      {StateForm::codes4,
       "4bit",
       {"_4bit", "4bit"},
       {"dynamic4", "linear4_unsigned"},
       "blocks of 128, as torchao"},
  };
  return forms;
}

namespace {

const StateFormFacts& facts_of(StateForm form) {
  const auto i = static_cast<size_t>(form);
  require(i < state_forms().size() && state_forms()[i].form == form, "a form of states");
  return state_forms()[i];
}

}  // namespace

const char* to_string(StateForm form) {
  return facts_of(form).word;
}

const Codec* codec_of_state(StateForm form, bool squares) {
  // Found once: a step takes nothing from the heap.
  static const std::vector<const Codec*> found = [] {
    std::vector<const Codec*> all;
    for (const StateFormFacts& f : state_forms())
      for (const char* name : f.codecs) all.push_back(name == nullptr ? nullptr : &codec(name));
    return all;
  }();
  return found[2 * static_cast<size_t>(facts_of(form).form) + (squares ? 1 : 0)];
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
