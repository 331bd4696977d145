// OffloadedShardStore: each rank keeps the states of its pieces, and their fp32 parameters, with its host
// (ZeRO stage 1 to 3 with ZeRO-Offload's residence). The pieces, one behind the other, are a flat range of
// their own that an OffloadedStateStore has: a parameter of it is a piece of a run. So what that does of one
// rank's it does of these: its host updates them, and their weights rest with it, which a StreamedParamStore
// of the same range brings.
//
//   rank 1   | wte 1 | h.0 1 | h.1 1 | ln_f 1 |     with the host; windows keep to a run
//
// Ranks plan one schedule: windows lie at the same places of the pieces of all of them, and each has as many
// spans as the rank with most, some of them empty. Where states rest in codes a window has the bytes that the
// rank with most needs for it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/stores/gathered_params.h"
#include "engine/stores/kept_states.h"
#include "engine/stores/offloaded_states.h"
#include "engine/stores/shards.h"

namespace snug {

class OffloadedShardStore final : public KeptStates {
 public:
  struct Options {
    bool master = false;  // fp32 parameters too
    const GatheredParamStore* weights =
        nullptr;  // what layers read is in pieces on the device too, which the device's windows update
    // OffloadedStateStore::Options
    int64_t window = 0;
    std::optional<DType> parts = {};
    bool on_host = false, delayed = false;
    DType compute = DType::f32;
    // Whether the range has what is frozen too.
    bool frozen = false;
  };
  // Call inside the root program.
  OffloadedShardStore(Context& ctx, const ParamTable& table, StateSet set, const Comm& comm,
                      Options options);

  int windows() const override { return inner_->windows(); }
  std::span<const StateSpan> window(int w) const override {
    return spans_of_window(windows_[static_cast<size_t>(w)]);
  }
  void select(WindowRange range) override { inner_->select(range); }
  void open(Context& ctx, int w) override { inner_->open(ctx, open_ = w); }
  void close(Context& ctx, int w) override { inner_->close(ctx, w); }
  bool on_host() const override { return inner_->on_host(); }
  bool writes_back() const override { return inner_->writes_back(); }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  View acquire_scales(Context& ctx, int k, const StateSpan& span) override;
  View acquire_master(Context& ctx, const StateSpan& span) override;
  bool has_weights() const override {
    return inner_->has_weights() || (options_.weights != nullptr && options_.master);
  }
  View acquire_weights(Context& ctx, const StateSpan& span) override;
  View stored(int k, int64_t first) const override;
  View stored_scales(int k, int64_t first) const override;
  bool keeps(int64_t first) const override { return shards_.rank_of(first) == rank_; }

  // The range of this rank's pieces, a parameter a run, and what has it.
  const ParamTable& range() const { return pieces_; }
  OffloadedStateStore& pieces() { return *inner_; }
  // What of it a window has.
  const StateSpan& piece(int w) const { return inner_->window(w).front(); }
  // The parameters of this rank's pieces where they rest, if they do: OffloadedStateStore::master().
  const View& master() const { return inner_->master(); }
  // In a program: of every piece weights(run, its element, elements) = the rounded parameters.
  void round_master(Context& ctx, const std::function<View(size_t, int64_t, int64_t)>& weights);
  // The windows of each run.
  const std::vector<WindowRange>& of_runs() const { return of_runs_; }

 private:
  // The same of the range of pieces; of one that is empty, the begin of the open window.
  StateSpan kept(const StateSpan& span) const;
  // What of elements [begin, end) of the range of pieces is of which parameter, on a rank.
  std::vector<StateSpan> cut(std::span<const StateSpan> whole, int64_t begin, int64_t end,
                             int rank) const;
  int64_t room_of(std::span<const StateSpan> whole, const WindowCut& window) const;
  bool has_holes(std::span<const StateSpan> whole, const WindowCut& window) const;
  View none(int k, DType dtype) const;
  // Of a state in codes, at whichever rank keeps it.
  struct Kept {
    const StatePlaces& places;
    View room;
    RestForm form;
  };
  Kept kept_at(int k, int64_t first) const;

  Options options_;
  Shards shards_;
  int rank_;
  ParamTable pieces_;
  std::unique_ptr<OffloadedStateStore> inner_;
  std::vector<std::pair<size_t, size_t>> windows_;  // first and number of its spans
  bool flat_;
  std::vector<std::vector<StatePlaces>> places_;  // by window and rank, of states in codes
  std::vector<WindowRange> of_runs_;
  int open_ = 0;
};

}  // namespace snug
