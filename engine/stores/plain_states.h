// PlainStateStore: resident states. Where all rest in one dtype they lie as the parameters do; with
// codes among them in the places of state_places.h.
#pragma once

#include <utility>
#include <vector>

#include "engine/stores/kept_states.h"
#include "engine/stores/state_places.h"

namespace snug {

class PlainStateStore final : public KeptStates {
 public:
  // Call inside the root program. The names of `set` are for example {"exp_avg", "exp_avg_sq"}.
  // by_part: a window for each part of the table instead of one for all.
  PlainStateStore(Context& ctx, const ParamTable& table, StateSet set, bool by_part = false);
  int windows() const override { return static_cast<int>(windows_.size()); }
  std::span<const StateSpan> window(int w) const override {
    return spans_of_window(windows_[static_cast<size_t>(w)]);
  }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  View acquire_scales(Context& ctx, int k, const StateSpan& span) override;
  View stored(int k, int64_t first) const override;
  View stored_scales(int k, int64_t first) const override;

 private:
  const View& flat(int k) const { return states_[static_cast<size_t>(k)].view(); }

  AllPlaces places_;                                // unless they lie flat
  std::vector<std::pair<size_t, size_t>> windows_;  // first and number of its spans
  std::vector<Tensor> states_;
};

}  // namespace snug
