// Shards: which piece of every run of the flat range (part_runs.h) is which rank's, and where a rank
// keeps its pieces, one behind the other.
//
//   flat range   | wte      | h.0      | h.1      | ln_f |        runs of 256 x ranks elements
//   rank 0       | 0...     | 0...     | 0...     | 0    |        a piece of each, of one length
//   rank 1       |     1... |     1... |     1... |    1 |
//   kept by 1    | wte 1 | h.0 1 | h.1 1 | ln_f 1 |
//
// A piece is gathered or summed as soon as a block is, so blocks are cut and not the range as a whole.
#pragma once

#include <vector>

#include "engine/seams/comm.h"
#include "engine/stores/part_runs.h"

namespace snug {

struct ShardRun : PartRun {
  int64_t piece;  // elements of a rank's piece
  int64_t kept;   // where it begins among the pieces of a rank
};

class Shards {
 public:
  enum class Range : uint8_t { trained, all };
  Shards(const ParamTable& table, Range range);

  int ranks() const { return ranks_; }
  const std::vector<ShardRun>& runs() const { return runs_; }
  int64_t elements() const { return elements_; }  // that a rank keeps
  // The first element, of the flat range, of a rank's piece.
  static int64_t first(const ShardRun& run, int rank) { return run.first + rank * run.piece; }
  // The run that an element is in, and the rank that keeps it.
  size_t run_of(int64_t element) const;
  // The run that an element of what a rank keeps is in.
  size_t run_of_kept(int64_t kept) const;
  int rank_of(int64_t element) const {
    const ShardRun& run = runs_[run_of(element)];
    return static_cast<int>((element - run.first) / run.piece);
  }
  // Where a rank that keeps it has it.
  int64_t kept(int64_t element) const {
    const ShardRun& run = runs_[run_of(element)];
    return run.kept + (element - run.first) % run.piece;
  }
  // Of `spans`, which go up, what a rank keeps of a run.
  std::vector<StateSpan> cut(std::span<const StateSpan> spans, size_t run, int rank) const;
  // The same of all runs, filled up with empty spans: of a run as many on every rank, so that all of
  // them do the same ops.
  std::vector<std::vector<StateSpan>> cut_alike(const ParamTable& table, int rank) const;
  // As many of each run, each as long as that of the rank that has most in its place: what is planned
  // for an op on every span.
  std::vector<std::vector<StateSpan>> cut_widest(const ParamTable& table) const;
  // `flat`, a rank's pieces: the one of a run.
  View piece(const View& flat, size_t run) const {
    return flat.rows(runs_[run].kept, runs_[run].piece);
  }
  // All ranks' pieces of a tensor that holds what a rank keeps, of which `mine` is that of rank `own`;
  // the others' have no data here.
  void add_pieces(int own, const View& mine, std::vector<RestingWeights::Piece>& pieces) const;
  // The same of one run's piece.
  void add_piece(int own, size_t run, const View& mine,
                 std::vector<RestingWeights::Piece>& pieces) const;

 private:
  int ranks_;
  std::vector<ShardRun> runs_;
  int64_t elements_ = 0;
};

}  // namespace snug
