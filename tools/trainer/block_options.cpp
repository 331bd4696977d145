#include "tools/trainer/block_options.h"

#include <algorithm>
#include <memory>

#include "engine/core/units.h"
#include "layers/models/recompute.h"
#include "optim/clip.h"

namespace snug {
namespace {

// A block of a session of its own, of which nothing but the block is recorded.
class BlockRecorder {
 public:
  BlockRecorder(const Model& model, const Decisions& d, const OptimizerConfig& optimizer,
                const Settings& settings, const CostModel& cost)
      : model_(model), d_(d), cost_(cost), ctx_(Place::plan, settings) {
    const int root = schedule_.add(Name("root"), -1, true);
    block_ = schedule_.add(Name("block"), root, false);
    ctx_.program(schedule_, root, [&] {
      const DType compute = model.precision().compute;
      params_ = std::make_unique<PlainParamStore>(ctx_, model.params(), compute);
      if (d.packed_weights != WeightPacking::none)
        packed_ = std::make_unique<PackedWeights>(ctx_, model.params(), compute, d.packed_weights);
      if (d.update_in_backward)
        make_updates(optimizer);
      else
        grads_ = std::make_unique<PlainGradSink>(ctx_, model.params(), d.gradients);
      state_ = ctx_.tensor(Name("step_state"), step_state_shape(), DType::u8, Category::state);
      if (d.packing_boundaries)
        documents_ = ctx_.tensor(Name("batch.document_start"), {d.micro_batch, d.T}, DType::i32,
                                 Category::batch);
    });
    if (grads_) grads_->begin(true);
  }

  LayerOption record(const std::vector<SlotPolicy>& policies) {
    static const Name kX("x"), kGradient("dresidual");
    const Block& block = model_.block(0);
    const Dims dims{d_.micro_batch, d_.T};
    const Shape shape{dims.N(), model_.spec().C};
    const DType dtype = model_.precision().compute;
    GradSink* sink = grads_.get();
    if (updating_) {
      updating_->begin();
      sink = updating_.get();
    }
    Runtime rt{*params_, sink, state_.view(), nullptr, packed_.get(), documents_.view()};
    Pass pass(block.body(), policies);
    size_t forward_end = 0, backward_begin = 0;
    int64_t out_bytes = 0;
    ctx_.program(schedule_, block_, [&] {
      Tensor x = ctx_.tensor(kX, shape, dtype, Category::activations);
      Tensor out = block.forward(ctx_, rt, pass, dims, PassMode::train, std::move(x));
      out_bytes = out.view().bytes();
      forward_end = mark();
      out.reset();
      Tensor gradient = ctx_.tensor(kGradient, shape, dtype, Category::activations);
      backward_begin = mark();
      block.backward(ctx_, rt, pass, std::move(gradient));
    });
    const Program& p = schedule_.at(block_);
    const auto tick = [&](size_t op) { return tick_of(p.ops[op]); };
    LayerOption option;
    option.saved = most_live_bytes(p, tick(forward_end), tick(forward_end)) -
                   round_up(out_bytes, kTensorAlignment);
    option.transient = std::max(most_live_bytes(p, 0, tick(forward_end)),
                                most_live_bytes(p, tick(backward_begin), p.ticks)) -
                       option.saved;
    for (size_t i = 0; i < p.ops.size(); ++i)
      if (i != forward_end && i != backward_begin)
        option.compute += cost_.seconds(p.ops[i], dims.N());
    return option;
  }

 private:
  // What updates the block in its backward.
  void make_updates(const OptimizerConfig& config) {
    const ParamTable& table = model_.params();
    const bool separate = model_.precision().separate_master();
    optimizer_ = make_optimizer(config);
    if (d_.offload_optimizer) {
      states_ = std::make_unique<OffloadedStateStore>(
          ctx_, table, optimizer_->state_names(),
          OffloadedStateStore::Options{.master = separate, .by_part = true});
    } else {
      states_ = std::make_unique<PlainStateStore>(ctx_, table, optimizer_->state_names(), true);
      if (separate)
        master_ =
            ctx_.tensor(Name("master"), {table.flat_elements()}, DType::f32, Category::master);
    }
    updating_ = std::make_unique<UpdatingGradSink>(
        ctx_, table, *states_, d_.gradients,
        [this, separate](Context& ctx, const UpdatingGradSink::Complete& c) {
          gradient_norm_add(ctx, c.gradients, c.first, c.spans, state_);
          UpdateTargets targets;
          targets.master = params_->flat();
          if (separate) {
            targets.weights = params_->flat();
            targets.master.dtype = DType::f32;  // where the store has it, its shape alone counts
            if (master_.defined()) targets.master = master_;
          }
          targets.gradients = c.gradients;
          targets.first = c.first;
          optimizer_->update(ctx, targets, *states_, state_, c.windows);
        });
  }

  // An op that is none: where in the record we are.
  size_t mark() {
    const Op op(ctx_, "mark", {});
    return ctx_.current()->ops.size() - 1;
  }

  const Model& model_;
  const Decisions& d_;
  const CostModel& cost_;
  Schedule schedule_;
  Context ctx_;
  std::unique_ptr<PlainParamStore> params_;
  std::unique_ptr<PackedWeights> packed_;
  std::unique_ptr<PlainGradSink> grads_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<StateStore> states_;
  std::unique_ptr<UpdatingGradSink> updating_;
  Tensor master_, state_, documents_;
  int block_ = -1;
};

}  // namespace

int64_t tick_of(const OpRecord& op) {
  return op.time - 1;
}

int64_t most_live_bytes(const Program& program, int64_t first, int64_t last) {
  std::vector<std::pair<int64_t, int64_t>> events;
  events.reserve(2 * program.tensors.size());
  int64_t live = 0;
  for (const TensorRecord& t : program.tensors) {
    if (t.born > last || t.died <= first || t.residence != Residence::device) continue;
    const int64_t bytes = round_up(t.bytes, kTensorAlignment);
    if (t.born <= first)
      live += bytes;
    else
      events.emplace_back(t.born, bytes);
    if (t.died <= last) events.emplace_back(t.died, -bytes);
  }
  std::sort(events.begin(), events.end());  // an end before a birth at the same tick
  int64_t most = live;
  for (const auto& [time, bytes] : events) most = std::max(most, live += bytes);
  return most;
}

BlockOptions record_block_options(const Model& model, const Decisions& decisions,
                                  const OptimizerConfig& optimizer, const Settings& settings,
                                  const CostModel& cost) {
  BlockRecorder recorder(model, decisions, optimizer, settings, cost);
  const Body& body = model.block(0).body();
  const Dims dims{decisions.micro_batch, decisions.T};
  std::vector<std::vector<int>> groups;  // by stage: slots that come and go together
  for (size_t s = 0; s + 1 < body.stages().size(); ++s) {
    groups.emplace_back();
    for (const int slot : body.stages()[s].outputs)
      if (body.slot(slot).shape(dims).rank() > 1) groups.back().push_back(slot);
  }
  BlockOptions all;
  const auto add = [&](const std::vector<SlotPolicy>& policies) {
    all.options.push_back(recorder.record(policies));
    all.names.push_back(recompute_text(policies, body));
  };
  // The first pass assigns gradients; those that count add to them, as most micro-steps do.
  recorder.record(std::vector<SlotPolicy>(static_cast<size_t>(body.slots()), SlotPolicy::keep));
  for (size_t set = 0; set < size_t{1} << groups.size(); ++set) {
    std::vector<SlotPolicy> policies(static_cast<size_t>(body.slots()), SlotPolicy::keep);
    for (size_t g = 0; g < groups.size(); ++g)
      if (set >> g & 1)
        for (const int slot : groups[g])
          policies[static_cast<size_t>(slot)] = SlotPolicy::recompute;
    add(policies);
  }
  add(parse_policies("block", "none", model).front());
  BlockOptions kept;
  std::vector<int> list = efficient_options(all.options);
  if (list.front() != 0) list.insert(list.begin(), 0);
  for (const int i : list) {
    kept.options.push_back(all.options[static_cast<size_t>(i)]);
    kept.names.push_back(all.names[static_cast<size_t>(i)]);
  }
  return kept;
}

}  // namespace snug
