// PlainStateStore: resident states. Where all rest in one dtype they lie as the parameters do; with
// codes among them in the places of state_places.h.
#pragma once

#include <utility>
#include <vector>

#include "engine/stores/state_places.h"

namespace snug {

class PlainStateStore final : public StateStore {
 public:
  // Call inside the root program. The names of `set` are for example {"exp_avg", "exp_avg_sq"}.
  // by_part: a window for each part of the table instead of one for all.
  PlainStateStore(Context& ctx, const ParamTable& table, StateSet set, bool by_part = false);
  const std::vector<StateSpan>& spans() const override { return spans_; }
  int states() const override { return static_cast<int>(states_.size()); }
  int windows() const override { return static_cast<int>(windows_.size()); }
  std::span<const StateSpan> window(int w) const override {
    const auto& [first, count] = windows_[static_cast<size_t>(w)];
    return std::span(spans_).subspan(first, count);
  }
  RestForm form(int k, const StateSpan& span) const override { return set_.form_of(k, span.param); }
  int64_t rows(const StateSpan& span) const override { return set_.rows_of(span.param); }
  int64_t numbers(int k, const StateSpan& span) const override {
    return set_.numbers(k, span.param, span.elements);
  }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  View acquire_scales(Context& ctx, int k, const StateSpan& span) override;
  void release(Context&, int, const StateSpan&) override {}
  View stored(int k, int64_t first) const override;
  View stored_scales(int k, int64_t first) const override;

 private:
  const View& flat(int k) const { return states_[static_cast<size_t>(k)].view(); }

  StateSet set_;
  AllPlaces places_;  // unless they lie flat
  std::vector<StateSpan> spans_;
  std::vector<std::pair<size_t, size_t>> windows_;  // first and number of its spans
  std::vector<Tensor> states_;
};

}  // namespace snug
