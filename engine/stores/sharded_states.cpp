#include "engine/stores/sharded_states.h"

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

ShardedStateStore::ShardedStateStore(Context& ctx, const ParamTable& table, StateSet set,
                                     const Comm& comm, Options options)
    : KeptStates(std::move(set)),
      comm_(comm),
      options_(options),
      shards_(table, Shards::Range::trained) {
  for (const std::vector<StateSpan>& window : shards_.cut_alike(table, comm.rank())) {
    windows_.emplace_back(spans_.size(), window.size());
    spans_.insert(spans_.end(), window.begin(), window.end());
  }
  int64_t bytes = 0;
  const std::vector<StateSpan> whole = whole_parameter_spans(table);
  for (int rank = 0; rank < comm.size(); ++rank) {
    std::vector<StateSpan> own;
    for (size_t run = 0; run < shards_.runs().size(); ++run) {
      const std::vector<StateSpan> cut = shards_.cut(whole, run, rank);
      own.insert(own.end(), cut.begin(), cut.end());
    }
    places_.emplace_back(own, set_);
    bytes = std::max(bytes, places_.back().bytes());
  }
  for (const Name name : set_.names)
    states_.push_back(ctx.tensor(name, {bytes}, DType::u8, Category::optimizer));
  if (options.master)
    master_ = ctx.tensor(Name("master"), {shards_.elements()}, DType::f32, Category::master);
}

View ShardedStateStore::acquire(Context&, int k, const StateSpan& span) {
  const RestForm how = form(k, span);
  if (span.elements == 0) {
    View none = flat(k).rows(0, 0);
    none.dtype = how.dtype;
    return none;
  }
  return places_[static_cast<size_t>(comm_.rank())].values(flat(k), how, span.offset,
                                                           span.elements);
}

View ShardedStateStore::acquire_scales(Context&, int k, const StateSpan& span) {
  const RestForm how = form(k, span);
  if (!how.coded()) return {};
  if (span.elements == 0) {
    View none = flat(k).rows(0, 0);
    none.dtype = DType::f32;
    return none;
  }
  return places_[static_cast<size_t>(comm_.rank())].scales(flat(k), how, span.offset,
                                                           span.elements);
}

View ShardedStateStore::acquire_master(Context&, const StateSpan& span) {
  const View kept = options_.master    ? master_.view()
                    : options_.weights ? options_.weights->kept()
                                       : View();
  if (!kept.defined()) return {};
  return span.elements == 0 ? kept.rows(0, 0) : kept.rows(shards_.kept(span.offset), span.elements);
}

View ShardedStateStore::acquire_weights(Context&, const StateSpan& span) {
  if (!has_weights()) return {};
  const View& kept = options_.weights->kept();
  return span.elements == 0 ? kept.rows(0, 0) : kept.rows(shards_.kept(span.offset), span.elements);
}

ShardedStateStore::Kept ShardedStateStore::kept_at(int k, int64_t first) const {
  const int rank = shards_.rank_of(first);
  const StatePlaces& places = places_[static_cast<size_t>(rank)];
  return {places, flat(k), set_.form_of(k, places.param_at(first)), rank == comm_.rank()};
}

View ShardedStateStore::stored(int k, int64_t first) const {
  const Kept at = kept_at(k, first);
  View v = at.places.values(at.piece, at.form, first, at.places.elements_from(first));
  if (!at.own) v.data = nullptr;
  return v;
}

View ShardedStateStore::stored_scales(int k, int64_t first) const {
  const Kept at = kept_at(k, first);
  View v = at.places.scales(at.piece, at.form, first, at.places.elements_from(first));
  if (!at.own) v.data = nullptr;
  return v;
}

}  // namespace snug
