// ShardedStateStore: a rank keeps the optimizer's states, and the fp32 parameters of a 16-bit model, of
// its pieces alone (ZeRO stage 1). A window is a run of the table; its spans are what of each parameter
// is in this rank's piece. What is small enough to rest in f32 is decided on the whole parameter.
//
// Ranks plan one schedule: every tensor has the size that the rank with most needs, and every window as
// many spans, some of them empty.
#pragma once

#include <utility>
#include <vector>

#include "engine/stores/gathered_params.h"
#include "engine/stores/kept_states.h"
#include "engine/stores/shards.h"
#include "engine/stores/state_places.h"

namespace snug {

class ShardedStateStore final : public KeptStates {
 public:
  struct Options {
    bool master = false;  // fp32 parameters too
    const GatheredParamStore* weights =
        nullptr;  // what layers read is in pieces too, which these are
  };
  // Call inside the root program.
  ShardedStateStore(Context& ctx, const ParamTable& table, StateSet set, const Comm& comm,
                    Options options);

  int windows() const override { return static_cast<int>(windows_.size()); }
  std::span<const StateSpan> window(int w) const override {
    return spans_of_window(windows_[static_cast<size_t>(w)]);
  }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  View acquire_scales(Context& ctx, int k, const StateSpan& span) override;
  View acquire_master(Context& ctx, const StateSpan& span) override;
  bool has_weights() const override { return options_.weights != nullptr && options_.master; }
  View acquire_weights(Context& ctx, const StateSpan& span) override;
  View stored(int k, int64_t first) const override;
  View stored_scales(int k, int64_t first) const override;
  bool keeps(int64_t first) const override { return shards_.rank_of(first) == comm_.rank(); }

  // The windows of each run: one.
  std::vector<WindowRange> of_runs() const {
    std::vector<WindowRange> list;
    for (int w = 0; w < windows(); ++w) list.push_back({w, w + 1});
    return list;
  }
  // The fp32 parameters of this rank's pieces; undefined without Options::master.
  const View& master() const { return master_.view(); }

 private:
  // State `k` of an element, at whichever rank keeps it.
  struct Kept {
    const StatePlaces& places;
    View piece;
    RestForm form;
    bool own;
  };
  Kept kept_at(int k, int64_t first) const;
  const View& flat(int k) const { return states_[static_cast<size_t>(k)].view(); }

  const Comm& comm_;
  Options options_;
  Shards shards_;
  std::vector<StatePlaces> places_;                 // by rank
  std::vector<std::pair<size_t, size_t>> windows_;  // first and number of its spans
  std::vector<Tensor> states_;
  Tensor master_;
};

}  // namespace snug
