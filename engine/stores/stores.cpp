#include "engine/stores/stores.h"

#include "engine/core/error.h"
#include "engine/kernels/gradient_norm.h"
#include "engine/kernels/kernels.h"
#include "engine/stores/part_runs.h"

namespace snug {

Stores::Stores(Context& ctx, const ParamTable& table, const StorePolicy& policy, Update update)
    : table_(table), policy_(policy), update_(std::move(update)) {
  require(!policy.offload_params || (policy.offload_optimizer && policy.trains),
          "weights with the host where the optimizer's state is");
  require(!policy.offload_gradients || (policy.trains && !policy.update_in_backward),
          "gradients with the host where some are kept");
  require(!policy.update_on_host || (policy.offload_optimizer && policy.offload_gradients),
          "states and gradients with the host that updates");
  require(!policy.delayed_update || (policy.update_on_host && !policy.offload_params),
          "a host that updates weights of the device, one step late");
  require(!policy.states_on_disk || (policy.trains && !policy.update_in_backward &&
                                     !policy.offload_optimizer && policy.comm == nullptr),
          "states on disk that this process updates behind backward");
  require(policy.comm == nullptr ||
              !((policy.offload_params || policy.offload_tables || policy.offload_gradients) &&
                policy.zero > 0),
          "ranks that keep what they have pieces of on the device");
  require(policy.zero == 0 || (policy.comm != nullptr && policy.trains), "ranks to share a run");
  if (policy.zero == 3)
    gathered_ = std::make_unique<GatheredParamStore>(ctx, table, policy.compute, *policy.comm);
  else if (!policy.offload_params)
    params_ = std::make_unique<PlainParamStore>(ctx, table, policy.compute, policy.offload_tables);
  if (policy.trains) make_training(ctx);
  if (!table.coded().empty()) {
    ParamStore& others = params();
    coded_ = std::make_unique<CodedParamStore>(ctx, table, policy.compute, others,
                                               policy.offload_params);
  }
}

void Stores::make_training(Context& ctx) {
  const StorePolicy& p = policy_;
  if (p.comm) {
    shards_ = std::make_unique<Shards>(table_, Shards::Range::trained);
    cut_ =
        ctx.planning() ? shards_->cut_widest(table_) : shards_->cut_alike(table_, p.comm->rank());
  }
  if (p.separate_master && !p.offload_optimizer && p.zero == 0)
    master_ = ctx.tensor(Name("master"), {table_.trained_elements()}, DType::f32, Category::master);
  const bool by_part = p.update_in_backward || p.offload_params || p.offload_gradients;
  if (p.zero >= 2 && !p.update_in_backward)
    scattered_ = std::make_unique<ScatteredGradSink>(ctx, table_, *shards_, p.gradients, *p.comm);
  else if (!p.update_in_backward && !p.offload_gradients)
    plain_ = std::make_unique<PlainGradSink>(ctx, table_, p.gradients);
  if (plain_ && p.comm)
    summed_ = std::make_unique<SummedGradSink>(*plain_, *shards_, *p.comm, p.zero > 0);
  if (p.offload_optimizer && p.zero > 0) {
    auto store = std::make_unique<OffloadedShardStore>(
        ctx, table_, p.states, *p.comm,
        OffloadedShardStore::Options{.master = p.separate_master, .weights = gathered_.get()});
    shards_away_ = store.get();
    states_ = std::move(store);
    if (scattered_) scattered_->set_windows(shards_away_->of_runs());
  } else if (p.offload_optimizer) {
    auto store = std::make_unique<OffloadedStateStore>(
        ctx, table_, p.states,
        OffloadedStateStore::Options{
            .master = p.separate_master,
            .by_part = by_part,
            .weights = p.offload_params ? std::optional(p.compute) : std::nullopt,
            .on_host = p.update_on_host,
            .compute = p.compute,
            .delayed = p.delayed_update});
    offloaded_ = store.get();
    if (p.update_on_host && params_) offloaded_->set_device_weights(ctx, params_->whole(), 0);
    states_ = std::move(store);
    if (p.offload_params)
      streamed_ = std::make_unique<StreamedParamStore>(ctx, table_, p.compute, *offloaded_,
                                                       p.offload_tables);
  } else if (p.states_on_disk) {
    states_ = std::make_unique<DiskStateStore>(ctx, table_, p.states,
                                               DiskStateStore::Options{.by_part = by_part});
  } else if (p.zero > 0) {
    auto store = std::make_unique<ShardedStateStore>(
        ctx, table_, p.states, *p.comm,
        ShardedStateStore::Options{.master = p.separate_master, .weights = gathered_.get()});
    sharded_ = store.get();
    states_ = std::move(store);
  } else {
    states_ = std::make_unique<PlainStateStore>(ctx, table_, p.states, by_part);
  }
  if (sharded_) of_runs_ = sharded_->of_runs();
  if (shards_away_) of_runs_ = shards_away_->of_runs();
  sharing_.resize(of_runs_.size());
  for (const PartRun& run : trained_runs(table_))
    squared_.push_back(spans_of(states_->spans(), run));
  if (p.offload_gradients)
    away_ = std::make_unique<OffloadedGradSink>(
        ctx, table_, *states_, p.gradients, p.update_on_host, p.delayed_update,
        p.comm ? std::optional(OffloadedGradSink::Ranks{*p.comm, cut_}) : std::nullopt);
  if (p.delayed_update)
    offloaded_->set_late(p.gradients, [this](int64_t first) { return away_->late(first); });
  if (p.update_in_backward)
    updating_ = std::make_unique<UpdatingGradSink>(
        ctx, table_, *states_, p.gradients,
        [this](Context& c, const Complete& complete) {
          const Complete own = shards_ ? sum_complete(c, complete) : complete;
          UpdateTargets t = targets();
          t.gradients = own.gradients;
          t.first = own.first;
          update_(c, t, own);
          if (!shares()) return;
          Comm::Flight flight = begin_share(c, shards_->run_of(complete.first));
          Comm::arrive(c, flight);
        },
        of_runs_);
}

// Of ranks: summed over them, and what of it this rank updates.
Stores::Complete Stores::sum_complete(Context& ctx, const Complete& complete) {
  const size_t i = shards_->run_of(complete.first);
  const ShardRun& run = shards_->runs()[i];
  if (policy_.zero == 0) {
    policy_.comm->all_reduce_sum(ctx, complete.gradients);
    return {complete.gradients, complete.first, complete.windows, cut_[i]};
  }
  const int rank = policy_.comm->rank();
  const View own = complete.gradients.rows(rank * run.piece, run.piece);
  policy_.comm->reduce_scatter_sum(ctx, {own, false}, complete.gradients);
  return {own, Shards::first(run, rank), complete.windows, cut_[i]};
}

ParamStore& Stores::params() {
  if (coded_) return *coded_;
  if (streamed_) return *streamed_;
  if (gathered_) return *gathered_;
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
  if (gathered_ || (policy_.zero > 0 && policy_.separate_master)) return resting_in_shards();
  if (!policy_.trains || trained == all) return master();
  std::vector<RestingWeights::Piece> pieces = streamed_ ? streamed_->frozen() : params_->frozen();
  pieces.push_back({0, master()});
  return RestingWeights(std::move(pieces));
}

RestingWeights Stores::resting_in_shards() const {
  const int64_t trained = table_.trained_elements(), all = table_.flat_elements();
  std::vector<RestingWeights::Piece> pieces;
  if (gathered_) gathered_->shards().add_pieces(policy_.comm->rank(), gathered_->kept(), pieces);
  if (policy_.separate_master) {
    std::erase_if(pieces, [&](const RestingWeights::Piece& p) { return p.first < trained; });
    shards_->add_pieces(policy_.comm->rank(), kept_master(), pieces);
  }
  if (params_ && trained < all)
    for (RestingWeights::Piece& p : params_->frozen()) pieces.push_back(std::move(p));
  return RestingWeights(std::move(pieces));
}

const View& Stores::kept_master() const {
  return shards_away_ ? shards_away_->master() : sharded_->master();
}

// This rank's piece of a run in a view of the whole range.
View Stores::own_rows(const View& flat, const ShardRun& run) const {
  return flat.rows(Shards::first(run, policy_.comm->rank()), run.piece);
}

void Stores::load(Context& ctx) {
  if (shards_away_ && policy_.separate_master) {
    shards_away_->round_master(ctx, [&](size_t run, int64_t first, int64_t n) {
      const ShardRun& r = shards_->runs()[run];
      return (gathered_ ? gathered_->kept().rows(r.kept, r.piece) : own_rows(params_->flat(), r))
          .rows(first, n);
    });
    return share(ctx);
  }
  if (sharded_ && policy_.separate_master) {
    if (gathered_)
      return cast(ctx, gathered_->kept().rows(0, shards_->elements()), sharded_->master());
    for (size_t i = 0; i < shards_->runs().size(); ++i)
      cast(ctx, own_rows(params_->flat(), shards_->runs()[i]),
           shards_->piece(sharded_->master(), i));
    return share(ctx);
  }
  if (streamed_)
    streamed_->load(ctx);
  else if (policy_.update_on_host)
    offloaded_->load_weights(ctx);
  else if (master_.defined())
    cast(ctx, params_->flat().rows(0, table_.trained_elements()), master_);
  else if (offloaded_ && offloaded_->master().defined())
    offloaded_->round_master(ctx, params_->flat());
}

GradSink& Stores::gradients() {
  if (updating_) return *updating_;
  if (away_) return *away_;
  if (scattered_) return *scattered_;
  if (summed_) return *summed_;
  return *plain_;
}

void Stores::begin(bool first_of_window, bool last_of_window) {
  if (updating_)
    updating_->begin();
  else if (away_)
    away_->begin(first_of_window, last_of_window);
  else if (scattered_)
    scattered_->begin(first_of_window);
  else
    plain_->begin(first_of_window);
  if (summed_) summed_->begin(last_of_window);
}

void Stores::end(Context& ctx) {
  if (away_) away_->end(ctx);
  if (scattered_) scattered_->settle(ctx);
  if (summed_) summed_->settle(ctx);
  done_reading(ctx);
}

void Stores::done_reading(Context& ctx) {
  if (gathered_) gathered_->drop_rest(ctx);
}

void Stores::sum_ranks(Context& ctx) {
  if (summed_ && policy_.comm->in_turn()) summed_->sum(ctx);
}

// What others have updated here no checkpoint of this rank reads.
Comm::Flight Stores::begin_share(Context& ctx, size_t i) {
  const ShardRun& run = shards_->runs()[i];
  return policy_.comm->begin_all_gather(ctx, params_->flat().rows(run.first, run.elements),
                                        own_rows(params_->flat(), run), nullptr);
}

void Stores::share(Context& ctx) {
  for (size_t i = 0; shares() && i < shards_->runs().size(); ++i) {
    Comm::Flight flight = begin_share(ctx, i);
    Comm::arrive(ctx, flight);
  }
}

void Stores::update_and_share(Context& ctx, const std::function<void(WindowRange)>& update) {
  // Windows with the host have an order of their own, one ahead.
  if (!shares() || policy_.comm->in_turn() || shards_away_) {
    update({});
    return share(ctx);
  }
  constexpr size_t kMost = 8;  // on their way
  for (size_t i = 0; i < of_runs_.size(); ++i) {
    update(of_runs_[i]);
    if (i >= kMost) Comm::arrive(ctx, sharing_[i - kMost]);
    sharing_[i] = begin_share(ctx, i);
  }
  for (Comm::Flight& flight : sharing_) Comm::arrive(ctx, flight);
}

// Of ranks each sums up its own pieces, also where it has all gradients: so the sum does not depend on
// who keeps what.
void Stores::sum_squares_of_ranks(Context& ctx, const View& state) {
  gradient_norm_reset(ctx, state);
  for (size_t i = 0; i < cut_.size(); ++i) {
    const ShardRun& run = shards_->runs()[i];
    const View own =
        scattered_ ? shards_->piece(scattered_->kept(), i) : own_rows(plain_->flat(), run);
    const int64_t first = Shards::first(run, policy_.comm->rank());
    for (const StateSpan& s : cut_[i])
      sum_of_squares_and_finite(ctx, own.rows(s.offset - first, s.elements), state, s.offset);
  }
  policy_.comm->sum_step(ctx, state);
}

// Run by run of the table, wherever the gradients rest: the order of the sums is the same.
void Stores::sum_squares(Context& ctx, const View& state) {
  if (away_) {
    away_->norm(ctx, state);
    if (policy_.comm) policy_.comm->sum_step(ctx, state);
    return;
  }
  if (shards_) return sum_squares_of_ranks(ctx, state);
  gradient_norm_reset(ctx, state);
  for (const std::span<const StateSpan> spans : squared_)
    gradient_norm_add(ctx, plain_->flat(), 0, spans, state);
}

UpdateTargets Stores::targets() const {
  UpdateTargets t;
  if (policy_.zero > 0 && (gathered_ || policy_.separate_master)) {
    // Acquired span by span; what is said here is the range.
    const DType held = policy_.separate_master ? DType::f32 : policy_.compute;
    t.master = {nullptr, {table_.trained_elements()}, held, Place::plan, Name("master")};
  } else {
    t.master = master();
  }
  if (policy_.separate_master && params_ && !policy_.update_on_host)
    t.weights = params_->flat().rows(0, table_.trained_elements());
  t.gate = gate_;
  if (away_)
    t.brought = away_.get();
  else if (scattered_)
    t.brought = scattered_.get();
  else if (plain_)
    t.gradients = plain_->flat();
  return t;
}

void Stores::finish(Context& ctx, const View& state) {
  updating_->finish(ctx);
  if (policy_.comm) policy_.comm->sum_step(ctx, state);
}

void Stores::send_late(Context& ctx) {
  away_->leave(ctx);
  offloaded_->send_weights(ctx);
  away_->left(ctx);
}

View Stores::gradient(int param) const {
  require(!scattered_, "gradients that are not in pieces");
  return away_ ? away_->stored(param) : parameter_view(plain_->flat(), table_[param]);
}

}  // namespace snug
