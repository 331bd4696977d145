#include "engine/stores/sharded_offload.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/stores/state_places.h"

namespace snug {

OffloadedShardStore::OffloadedShardStore(Context& ctx, const ParamTable& table, StateSet set,
                                         const Comm& comm, Options options)
    : KeptStates(std::move(set)),
      options_(options),
      shards_(table, Shards::Range::trained),
      rank_(comm.rank()),
      flat_(lie_flat(set_)) {
  require(set_.rows.empty() && set_.counts.empty(),
          "states of elements, to be cut where ranks are");
  const Shards range(table, options.frozen ? Shards::Range::all : Shards::Range::trained);
  for (const ShardRun& run : range.runs()) {
    ParamInfo piece;
    piece.name = run_name("piece", table, run);
    piece.shape = {run.piece};
    piece.part = run.part;
    piece.trainable = run.trained;
    piece.gathered = table[run.param].gathered;
    pieces_.add(std::move(piece));
  }
  const std::vector<StateSpan> whole = whole_parameter_spans(table);
  StateSet flat(set_.names);
  if (flat_) flat.form = set_.form;
  OffloadedStateStore::Options inner{.master = options.master,
                                     .window = options.window,
                                     .by_part = true,
                                     .weights = options.parts,
                                     .on_host = options.on_host,
                                     .compute = options.compute,
                                     .delayed = options.delayed};
  inner.holes = [&](const WindowCut& window) { return has_holes(whole, window); };
  if (!flat_) inner.room = [&](const WindowCut& window) { return room_of(whole, window); };
  inner_ = std::make_unique<OffloadedStateStore>(ctx, pieces_, std::move(flat), inner);
  of_runs_.assign(shards_.runs().size(), {0, 0});
  for (int w = 0; w < inner_->windows(); ++w) {
    require(inner_->window(w).size() == 1, "a window of one piece");
    const StateSpan& at = inner_->window(w).front();
    const auto i = static_cast<size_t>(at.param);
    const ShardRun& run = shards_.runs()[i];
    const auto on = [&](int rank) { return cut(whole, at.offset, at.offset + at.elements, rank); };
    size_t most = 1;
    for (int r = 0; r < shards_.ranks(); ++r) most = std::max(most, on(r).size());
    if (!flat_) {
      places_.emplace_back();
      for (int r = 0; r < shards_.ranks(); ++r) places_.back().emplace_back(on(r), set_);
    }
    std::vector<StateSpan> own = on(rank_);
    own.resize(most, {run.param, table[run.param].group,
                      Shards::first(run, rank_) + at.offset - run.kept, 0});
    windows_.emplace_back(spans_.size(), own.size());
    spans_.insert(spans_.end(), own.begin(), own.end());
    if (of_runs_[i].last == 0) of_runs_[i].first = w;
    of_runs_[i].last = w + 1;
  }
}

std::vector<StateSpan> OffloadedShardStore::cut(std::span<const StateSpan> whole, int64_t begin,
                                                int64_t end, int rank) const {
  const ShardRun& run = shards_.runs()[shards_.run_of_kept(begin)];
  const int64_t first = Shards::first(run, rank) - run.kept;
  std::vector<StateSpan> list;
  for (const StateSpan& s : spans_of(whole, run)) {
    const int64_t from = std::max(first + begin, s.offset);
    const int64_t to = std::min(first + end, s.offset + s.elements);
    if (from < to) list.push_back({s.param, s.group, from, to - from});
  }
  return list;
}

// The same for every state. A rank that has nothing of it brings and sends the others' bytes all the same.
int64_t OffloadedShardStore::room_of(std::span<const StateSpan> whole,
                                     const WindowCut& window) const {
  int64_t bytes = 64;  // a tensor all the same
  for (int r = 0; r < shards_.ranks(); ++r)
    bytes = std::max(bytes, StatePlaces(cut(whole, window.begin, window.end, r), set_).bytes());
  return bytes;
}

bool OffloadedShardStore::has_holes(std::span<const StateSpan> whole,
                                    const WindowCut& window) const {
  for (int r = 0; r < shards_.ranks(); ++r) {
    int64_t left = window.end - window.begin;
    for (const StateSpan& s : cut(whole, window.begin, window.end, r)) left -= s.elements;
    if (left > 0) return true;
  }
  return false;
}

View OffloadedShardStore::none(int k, DType dtype) const {
  View v = inner_->opened_room(k).rows(0, 0);
  v.dtype = dtype;
  return v;
}

View OffloadedShardStore::acquire(Context& ctx, int k, const StateSpan& span) {
  if (flat_) return inner_->acquire(ctx, k, kept(span));
  const RestForm how = form(k, span);
  if (span.elements == 0) return none(k, how.dtype);
  return places_[static_cast<size_t>(open_)][static_cast<size_t>(rank_)].values(
      inner_->opened_room(k), how, span.offset, span.elements);
}

View OffloadedShardStore::acquire_scales(Context&, int k, const StateSpan& span) {
  const RestForm how = form(k, span);
  if (!how.coded()) return {};
  if (span.elements == 0) return none(k, DType::f32);
  return places_[static_cast<size_t>(open_)][static_cast<size_t>(rank_)].scales(
      inner_->opened_room(k), how, span.offset, span.elements);
}

OffloadedShardStore::Kept OffloadedShardStore::kept_at(int k, int64_t first) const {
  OffloadedStateStore::Rested at = inner_->rested_room(k, shards_.kept(first));
  const StatePlaces& places = places_[at.window][static_cast<size_t>(shards_.rank_of(first))];
  if (!keeps(first)) at.room.data = nullptr;
  return {places, at.room, set_.form_of(k, places.param_at(first))};
}

StateSpan OffloadedShardStore::kept(const StateSpan& span) const {
  const StateSpan& at = inner_->window(open_).front();
  const int64_t first = span.elements == 0 ? at.offset : shards_.kept(span.offset);
  return {at.param, span.group, first, span.elements};
}

View OffloadedShardStore::acquire_master(Context& ctx, const StateSpan& span) {
  if (inner_->master().defined()) return inner_->acquire_master(ctx, kept(span));
  if (!options_.weights) return {};
  return options_.weights->kept().rows(kept(span).offset, span.elements);
}

View OffloadedShardStore::acquire_weights(Context& ctx, const StateSpan& span) {
  if (inner_->has_weights()) return inner_->acquire_weights(ctx, kept(span));
  if (!has_weights()) return {};
  return options_.weights->kept().rows(kept(span).offset, span.elements);
}

View OffloadedShardStore::stored(int k, int64_t first) const {
  if (is_late(k)) return late_(first);
  View v;
  if (flat_) {
    v = inner_->stored(k, shards_.kept(first));
  } else {
    const Kept at = kept_at(k, first);
    v = at.places.values(at.room, at.form, first, at.places.elements_from(first));
  }
  if (!keeps(first)) v.data = nullptr;
  return v;
}

View OffloadedShardStore::stored_scales(int k, int64_t first) const {
  if (flat_ || is_late(k)) return {};
  const Kept at = kept_at(k, first);
  View v = at.places.scales(at.room, at.form, first, at.places.elements_from(first));
  if (!keeps(first)) v.data = nullptr;
  return v;
}

void OffloadedShardStore::round_master(
    Context& ctx, const std::function<View(size_t, int64_t, int64_t)>& weights) {
  inner_->round_master(ctx, [&](int64_t begin, int64_t elements) {
    const size_t run = shards_.run_of_kept(begin);
    return weights(run, begin - shards_.runs()[run].kept, elements);
  });
}

}  // namespace snug
