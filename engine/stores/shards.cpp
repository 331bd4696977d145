#include "engine/stores/shards.h"

#include <algorithm>

#include "engine/core/error.h"

namespace snug {

Shards::Shards(const ParamTable& table, Range range) : ranks_(table.ranks()) {
  for (const PartRun& run : range == Range::all ? part_runs(table) : trained_runs(table)) {
    require(run.elements % (kSpanAlignment * ranks_) == 0, "runs that ranks can share");
    runs_.push_back({run, run.elements / ranks_, elements_});
    elements_ += run.elements / ranks_;
  }
}

size_t Shards::run_of(int64_t element) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), element,
                                      [](int64_t e, const ShardRun& r) { return e < r.first; });
  require(after != runs_.begin() && element < (after - 1)->first + (after - 1)->elements,
          "an element of the shards");
  return static_cast<size_t>(after - runs_.begin()) - 1;
}

std::vector<StateSpan> Shards::cut(std::span<const StateSpan> spans, size_t run, int rank) const {
  const ShardRun& r = runs_[run];
  const int64_t begin = first(r, rank), end = begin + r.piece;
  std::vector<StateSpan> list;
  for (const StateSpan& s : spans_of(spans, r)) {
    const int64_t from = std::max(begin, s.offset), to = std::min(end, s.offset + s.elements);
    if (from < to) list.push_back({s.param, s.group, from, to - from});
  }
  return list;
}

std::vector<std::vector<StateSpan>> Shards::cut_alike(const ParamTable& table, int rank) const {
  const std::vector<StateSpan> whole = whole_parameter_spans(table);
  std::vector<std::vector<StateSpan>> list;
  for (size_t run = 0; run < runs_.size(); ++run) {
    size_t most = 1;
    for (int other = 0; other < ranks_; ++other)
      most = std::max(most, cut(whole, run, other).size());
    const ShardRun& r = runs_[run];
    std::vector<StateSpan> own = cut(whole, run, rank);
    own.resize(most, {r.param, table[r.param].group, first(r, rank) + r.piece, 0});
    list.push_back(std::move(own));
  }
  return list;
}

std::vector<std::vector<StateSpan>> Shards::cut_widest(const ParamTable& table) const {
  std::vector<std::vector<StateSpan>> list = cut_alike(table, 0);
  for (std::vector<StateSpan>& window : list)
    for (StateSpan& s : window) s.offset = runs_[static_cast<size_t>(&window - list.data())].first;
  for (int rank = 1; rank < ranks_; ++rank) {
    const std::vector<std::vector<StateSpan>> other = cut_alike(table, rank);
    for (size_t run = 0; run < list.size(); ++run)
      for (size_t i = 0; i < list[run].size(); ++i)
        list[run][i].elements = std::max(list[run][i].elements, other[run][i].elements);
  }
  return list;
}

void Shards::add_pieces(const Comm& comm, const View& mine,
                        std::vector<RestingWeights::Piece>& pieces) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    const bool own = rank == comm.rank();
    const View view = own ? mine : comm.on(rank, mine);
    if (!view.defined()) continue;
    for (size_t i = 0; i < runs_.size(); ++i)
      pieces.push_back({first(runs_[i], rank), piece(view, i), own});
  }
}

}  // namespace snug
