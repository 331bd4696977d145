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
  require(policy.zero < 3 || !policy.offload_tables,
          "tables with the host that each rank has whole");
  require(policy.zero == 0 || (policy.comm != nullptr && policy.trains), "ranks to share a run");
  if (policy.zero == 3 && !policy.offload_params)
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
  if (p.zero >= 2 && !p.update_in_backward && !p.offload_gradients)
    scattered_ = std::make_unique<ScatteredGradSink>(ctx, table_, *shards_, p.gradients, *p.comm);
  else if (!p.update_in_backward && !p.offload_gradients)
    plain_ = std::make_unique<PlainGradSink>(ctx, table_, p.gradients);
  if (plain_ && p.comm)
    summed_ = std::make_unique<SummedGradSink>(*plain_, *shards_, *p.comm, p.zero > 0);
  if (p.offload_optimizer && p.zero > 0) {
    make_shards_away(ctx);
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
      streamed_ = std::make_unique<StreamedParamStore>(ctx, table_, p.compute, offloaded_,
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
  if (p.offload_gradients && p.zero > 0) make_pieces_away(ctx);
  if (p.offload_gradients && p.zero < 2)
    away_ = std::make_unique<OffloadedGradSink>(
        ctx, table_, *states_, p.gradients, p.update_on_host, p.delayed_update && !pieces_,
        p.comm ? std::optional(OffloadedGradSink::Ranks{*p.comm, cut_, pieces_.get()})
               : std::nullopt);
  if (p.delayed_update && !pieces_)
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
          if (shares()) share(c, shards_->run_of(complete.first), 1);
        },
        of_runs_);
}

void Stores::make_shards_away(Context& ctx) {
  const StorePolicy& p = policy_;
  auto store = std::make_unique<OffloadedShardStore>(
      ctx, table_, p.states, *p.comm,
      OffloadedShardStore::Options{
          .master = p.separate_master,
          .weights = p.update_on_host ? nullptr : gathered_.get(),
          .parts = p.offload_params ? std::optional(p.compute) : std::nullopt,
          .on_host = p.update_on_host,
          .delayed = p.delayed_update,
          .compute = p.compute,
          .frozen = p.zero == 3});
  shards_away_ = store.get();
  states_ = std::move(store);
  OffloadedStateStore& own = shards_away_->pieces();
  if (p.offload_params) {
    streamed_ = std::make_unique<StreamedParamStore>(ctx, shards_away_->range(), p.compute, &own);
    gathered_ =
        std::make_unique<GatheredParamStore>(ctx, table_, p.compute, *p.comm, streamed_.get());
    if (p.zero < 3)
      whole_ =
          std::make_unique<StreamedParamStore>(ctx, table_, p.compute, nullptr, p.offload_tables);
  } else if (p.update_on_host && gathered_) {
    own.set_device_weights(ctx, gathered_->whole(), 0);
  } else if (p.update_on_host) {
    std::vector<int64_t> sizes;  // what is others', and this rank's piece, by run
    int64_t end = 0;
    for (const ShardRun& run : shards_->runs()) {
      const int64_t first = Shards::first(run, p.comm->rank());
      sizes.push_back(first - end);
      sizes.push_back(run.piece);
      end = first + run.piece;
    }
    sizes.push_back(params_->flat().elements() - end);
    const std::vector<Tensor> cut = ctx.split(params_->whole(), sizes);
    for (size_t i = 0; i < shards_->runs().size(); ++i)
      own.set_device_weights(ctx, cut[2 * i + 1], shards_->runs()[i].kept);
  }
}

void Stores::make_pieces_away(Context& ctx) {
  const StorePolicy& p = policy_;
  std::vector<OffloadedPieces::Cut> windows;
  if (shards_away_)
    for (int w = 0; w < shards_away_->windows(); ++w)
      windows.push_back({shards_away_->piece(w).offset, shards_away_->piece(w).elements});
  else
    for (const ShardRun& run : shards_->runs()) windows.push_back({run.kept, run.piece});
  pieces_ = std::make_unique<OffloadedPieces>(
      ctx, table_, *shards_, p.comm->rank(), cut_, windows,
      OffloadedPieces::Options{
          .dtype = p.gradients, .on_host = p.update_on_host, .delayed = p.delayed_update});
  if (p.delayed_update)
    shards_away_->set_late(p.gradients, [this](int64_t first) { return pieces_->late(first); });
  if (p.zero >= 2)
    scattered_ = std::make_unique<ScatteredGradSink>(ctx, table_, *shards_, p.gradients, *p.comm,
                                                     pieces_.get());
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
  if (whole_) return *whole_;
  if (gathered_) return *gathered_;
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
  if (gathered_ || (policy_.zero > 0 && has_master())) return resting_in_shards();
  if (!policy_.trains || trained == all) return master();
  std::vector<RestingWeights::Piece> pieces = streamed_ ? streamed_->frozen() : params_->frozen();
  pieces.push_back({0, master()});
  return RestingWeights(std::move(pieces));
}

RestingWeights Stores::resting_in_shards() const {
  const int64_t trained = table_.trained_elements(), all = table_.flat_elements();
  const int rank = policy_.comm->rank();
  std::vector<RestingWeights::Piece> pieces;
  if (gathered_ && !streamed_) gathered_->shards().add_pieces(rank, gathered_->kept(), pieces);
  if (streamed_)
    for (const RestingWeights::Piece& p : streamed_->frozen())
      gathered_->shards().add_piece(rank, gathered_->shards().run_of_kept(p.first), p.view, pieces);
  if (has_master() || streamed_) {
    std::erase_if(pieces, [&](const RestingWeights::Piece& p) { return p.first < trained; });
    shards_->add_pieces(rank, kept_master(), pieces);
  }
  if (trained < all && policy_.zero < 3)
    for (RestingWeights::Piece& p : whole_ ? whole_->frozen() : params_->frozen())
      pieces.push_back(std::move(p));
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
  if (shards_away_ && (streamed_ || policy_.update_on_host)) {
    if (streamed_)
      streamed_->load(ctx);
    else
      shards_away_->pieces().load_weights(ctx);
    return share(ctx);
  }
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
  if (shares()) share(ctx, 0, shards_->runs().size());
}

// What rests with the host passes through the device, where one run leaves while the next is gathered.
void Stores::share(Context& ctx, size_t first, size_t count) {
  const auto part = [&](size_t i) { return shards_->runs()[i].part; };
  const auto let_go = [&](size_t i) {
    whole_->taken(ctx, i);
    gathered_->drop(ctx, i);
  };
  for (size_t i = first; i < first + count; ++i) {
    if (!whole_) {
      Comm::Flight flight = begin_share(ctx, i);
      Comm::arrive(ctx, flight);
    } else if (part(i) < 0) {
      policy_.comm->all_gather(ctx, whole_->resident(i),
                               streamed_->acquire(ctx, static_cast<int>(i)));
    } else {
      streamed_->fetch_part(ctx, part(i));
      whole_->take(ctx, i, gathered_->gathered(ctx, i));
    }
    if (whole_ && i > first && part(i - 1) >= 0) let_go(i - 1);
  }
  if (whole_ && part(first + count - 1) >= 0) let_go(first + count - 1);
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
  if (pieces_) {
    pieces_->norm(ctx, state);
    return policy_.comm->sum_step(ctx, state);
  }
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
  if (policy_.zero > 0 && (gathered_ || has_master())) {
    // Acquired span by span; what is said here is the range.
    const DType held = policy_.separate_master ? DType::f32 : policy_.compute;
    t.master = {nullptr, {table_.trained_elements()}, held, Place::plan, Name("master")};
  } else {
    t.master = master();
  }
  if (policy_.separate_master && params_ && !policy_.update_on_host)
    t.weights = params_->flat().rows(0, table_.trained_elements());
  t.gate = gate_;
  if (pieces_)
    t.brought = pieces_.get();
  else if (away_)
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
  if (pieces_) return send_weights(ctx);
  away_->leave(ctx);
  offloaded_->send_weights(ctx);
  away_->left(ctx);
}

void Stores::send_weights(Context& ctx) {
  (shards_away_ ? shards_away_->pieces() : *offloaded_).send_weights(ctx);
  share(ctx);
}

void Stores::turn() {
  if (pieces_)
    pieces_->turn();
  else
    away_->turn();
}

View Stores::gradient(int param) const {
  require(!scattered_, "gradients that are not in pieces");
  return away_ ? away_->stored(param) : parameter_view(plain_->flat(), table_[param]);
}

}  // namespace snug
