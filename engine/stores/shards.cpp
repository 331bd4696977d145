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

size_t Shards::run_of_kept(int64_t kept) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), kept,
                                      [](int64_t k, const ShardRun& r) { return k < r.kept; });
  require(after != runs_.begin() && kept < elements_, "an element that a rank keeps");
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
  const std::vector<StateSpan> whole = whole_parameter_spans(table);
  std::vector<std::vector<StateSpan>> list(runs_.size());
  for (size_t run = 0; run < runs_.size(); ++run) {
    const ShardRun& r = runs_[run];
    list[run].push_back({r.param, table[r.param].group, r.first, 0});
    for (int rank = 0; rank < ranks_; ++rank) {
      const std::vector<StateSpan> own = cut(whole, run, rank);
      for (size_t i = 0; i < own.size(); ++i) {
        if (i == list[run].size()) list[run].push_back({own[i].param, own[i].group, r.first, 0});
        list[run][i].elements = std::max(list[run][i].elements, own[i].elements);
      }
    }
  }
  return list;
}

void Shards::add_pieces(int own, const View& mine,
                        std::vector<RestingWeights::Piece>& pieces) const {
  for (size_t i = 0; i < runs_.size(); ++i) add_piece(own, i, piece(mine, i), pieces);
}

void Shards::add_piece(int own, size_t run, const View& mine,
                       std::vector<RestingWeights::Piece>& pieces) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    View view = mine;
    if (rank != own) view.data = nullptr;
    pieces.push_back({first(runs_[run], rank), view, rank == own});
  }
}

}  // namespace snug
