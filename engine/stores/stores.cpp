#include "engine/stores/stores.h"

#include "engine/core/error.h"
#include "engine/kernels/gradient_norm.h"
#include "engine/kernels/kernels.h"
#include "engine/stores/part_runs.h"

namespace snug {

Stores::Stores(Context& ctx, const ParamTable& table, const StorePolicy& policy, Update update)
    : table_(table), policy_(policy), update_(std::move(update)) {
  require(!policy.offload_weights || (policy.offload_states && policy.trains),
          "weights with the host where the optimizer's state is");
  require(!policy.offload_gradients || (policy.trains && !policy.update_in_backward),
          "gradients with the host where some are kept");
  if (!policy.offload_weights)
    params_ = std::make_unique<PlainParamStore>(ctx, table, policy.compute);
  if (policy.trains) make_training(ctx);
  if (!table.coded().empty()) {
    ParamStore& others = params();
    coded_ = std::make_unique<CodedParamStore>(ctx, table, policy.compute, others,
                                               policy.offload_weights);
  }
}

void Stores::make_training(Context& ctx) {
  const StorePolicy& p = policy_;
  if (p.separate_master && !p.offload_states)
    master_ = ctx.tensor(Name("master"), {table_.trained_elements()}, DType::f32, Category::master);
  const bool by_part = p.update_in_backward || p.offload_weights || p.offload_gradients;
  if (!p.update_in_backward && !p.offload_gradients)
    plain_ = std::make_unique<PlainGradSink>(ctx, table_, p.gradients);
  if (p.offload_states) {
    auto store = std::make_unique<OffloadedStateStore>(
        ctx, table_, p.states,
        OffloadedStateStore::Options{
            .master = p.separate_master || p.offload_weights,
            .by_part = by_part,
            .weights = p.offload_weights ? std::optional(p.compute) : std::nullopt});
    offloaded_ = store.get();
    states_ = std::move(store);
    if (p.offload_weights)
      streamed_ = std::make_unique<StreamedParamStore>(ctx, table_, p.compute, *offloaded_);
  } else {
    states_ = std::make_unique<PlainStateStore>(ctx, table_, p.states, by_part);
  }
  for (const PartRun& run : trained_runs(table_))
    summed_.push_back(spans_of(states_->spans(), run));
  if (p.offload_gradients)
    away_ = std::make_unique<OffloadedGradSink>(ctx, table_, *states_, p.gradients);
  if (p.update_in_backward)
    updating_ = std::make_unique<UpdatingGradSink>(ctx, table_, *states_, p.gradients,
                                                   [this](Context& c, const Complete& complete) {
                                                     UpdateTargets t = targets();
                                                     t.gradients = complete.gradients;
                                                     t.first = complete.first;
                                                     update_(c, t, complete);
                                                   });
}

ParamStore& Stores::params() {
  if (coded_) return *coded_;
  if (streamed_) return *streamed_;
  return *params_;
}

View Stores::weights() const {
  return params_ ? params_->flat() : View();
}

View Stores::master() const {
  if (master_.defined()) return master_.view();
  if (offloaded_ && offloaded_->master().defined()) return offloaded_->master();
  return params_->flat().rows(0,
                              policy_.trains ? table_.trained_elements() : table_.flat_elements());
}

RestingWeights Stores::resting() const {
  const int64_t trained = table_.trained_elements(), all = table_.flat_elements();
  if (!policy_.trains || trained == all) return master();
  std::vector<RestingWeights::Piece> pieces;
  if (streamed_)
    pieces = streamed_->frozen();
  else
    pieces.push_back({trained, params_->flat().rows(trained, all - trained)});
  pieces.push_back({0, master()});
  return RestingWeights(std::move(pieces));
}

void Stores::load(Context& ctx) {
  if (streamed_)
    streamed_->load(ctx);
  else if (master_.defined())
    cast(ctx, params_->flat().rows(0, table_.trained_elements()), master_);
  else if (offloaded_ && offloaded_->master().defined())
    offloaded_->round_master(ctx, params_->flat());
}

GradSink& Stores::gradients() {
  if (updating_) return *updating_;
  if (away_) return *away_;
  return *plain_;
}

void Stores::begin(bool first_of_window) {
  if (updating_)
    updating_->begin();
  else if (away_)
    away_->begin(first_of_window);
  else
    plain_->begin(first_of_window);
}

void Stores::end(Context& ctx) {
  if (away_) away_->settle(ctx);
}

// Run by run of the table, wherever the gradients rest: the order of the sums is the same.
void Stores::sum_squares(Context& ctx, const View& state) {
  if (away_) return away_->norm(ctx, state);
  gradient_norm_reset(ctx, state);
  for (const std::span<const StateSpan> spans : summed_)
    gradient_norm_add(ctx, plain_->flat(), 0, spans, state);
}

UpdateTargets Stores::targets() const {
  UpdateTargets t;
  t.master = master();
  if (policy_.separate_master && params_)
    t.weights = params_->flat().rows(0, table_.trained_elements());
  t.gate = gate_;
  if (away_)
    t.brought = away_.get();
  else if (plain_)
    t.gradients = plain_->flat();
  return t;
}

void Stores::finish(Context& ctx) {
  updating_->finish(ctx);
}

View Stores::gradient(int param) const {
  return away_ ? away_->stored(param) : parameter_view(plain_->flat(), table_[param]);
}

}  // namespace snug
