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
      rank_(comm.rank()) {
  require(lie_flat(set_), "states of one dtype without scales, to be cut where ranks are");
  for (const ShardRun& run : shards_.runs()) {
    ParamInfo piece;
    piece.name = run_name("piece", table, run);
    piece.shape = {run.piece};
    piece.part = run.part;
    pieces_.add(std::move(piece));
  }
  StateSet flat(set_.names);
  flat.form = set_.form;
  inner_ = std::make_unique<OffloadedStateStore>(
      ctx, pieces_, std::move(flat),
      OffloadedStateStore::Options{
          .master = options.master, .window = options.window, .by_part = true});
  const std::vector<StateSpan> whole = whole_parameter_spans(table);
  of_runs_.assign(shards_.runs().size(), {0, 0});
  for (int w = 0; w < inner_->windows(); ++w) {
    require(inner_->window(w).size() == 1, "a window of one piece");
    const StateSpan& at = inner_->window(w).front();
    const auto i = static_cast<size_t>(at.param);
    const ShardRun& run = shards_.runs()[i];
    const std::span<const StateSpan> all = spans_of(whole, run);
    // What of the window is of which parameter, on a rank.
    const auto cut = [&](int rank) {
      const int64_t begin = Shards::first(run, rank) + at.offset - run.kept;
      const int64_t end = begin + at.elements;
      std::vector<StateSpan> list;
      for (const StateSpan& s : all) {
        const int64_t from = std::max(begin, s.offset), to = std::min(end, s.offset + s.elements);
        if (from < to) list.push_back({s.param, s.group, from, to - from});
      }
      return list;
    };
    size_t most = 1;
    for (int r = 0; r < shards_.ranks(); ++r) most = std::max(most, cut(r).size());
    std::vector<StateSpan> own = cut(rank_);
    own.resize(most, {run.param, table[run.param].group,
                      Shards::first(run, rank_) + at.offset - run.kept, 0});
    windows_.emplace_back(spans_.size(), own.size());
    spans_.insert(spans_.end(), own.begin(), own.end());
    if (of_runs_[i].last == 0) of_runs_[i].first = w;
    of_runs_[i].last = w + 1;
  }
}

StateSpan OffloadedShardStore::kept(const StateSpan& span) const {
  const StateSpan& at = inner_->window(open_).front();
  const int64_t first = span.elements == 0 ? at.offset : shards_.kept(span.offset);
  return {at.param, span.group, first, span.elements};
}

View OffloadedShardStore::acquire_master(Context& ctx, const StateSpan& span) {
  if (options_.master) return inner_->acquire_master(ctx, kept(span));
  if (!options_.weights) return {};
  return options_.weights->kept().rows(kept(span).offset, span.elements);
}

View OffloadedShardStore::acquire_weights(Context&, const StateSpan& span) {
  if (!has_weights()) return {};
  return options_.weights->kept().rows(kept(span).offset, span.elements);
}

View OffloadedShardStore::stored(int k, int64_t first) const {
  View v = inner_->stored(k, shards_.kept(first));
  if (!keeps(first)) v.data = nullptr;
  return v;
}

void OffloadedShardStore::round_master(
    Context& ctx, const std::function<View(size_t, int64_t, int64_t)>& weights) {
  inner_->round_master(ctx, [&](int64_t begin, int64_t elements) {
    const size_t after = static_cast<size_t>(
        std::upper_bound(shards_.runs().begin(), shards_.runs().end(), begin,
                         [](int64_t b, const ShardRun& run) { return b < run.kept; }) -
        shards_.runs().begin());
    return weights(after - 1, begin - shards_.runs()[after - 1].kept, elements);
  });
}

}  // namespace snug
