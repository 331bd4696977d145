// PlainStateStore: fp32 states, resident.
#pragma once

#include <utility>
#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

class PlainStateStore final : public StateStore {
 public:
  // Call inside the root program. `names` are those of the states, for example {"exp_avg",
  // "exp_avg_sq"}. by_part: a window for each part of the table instead of one for all.
  PlainStateStore(Context& ctx, const ParamTable& table, const std::vector<Name>& names,
                  bool by_part = false);
  const std::vector<StateSpan>& spans() const override { return spans_; }
  int states() const override { return static_cast<int>(states_.size()); }
  int windows() const override { return static_cast<int>(windows_.size()); }
  std::span<const StateSpan> window(int w) const override {
    const auto& [first, count] = windows_[static_cast<size_t>(w)];
    return std::span(spans_).subspan(first, count);
  }
  View acquire(Context& ctx, int k, const StateSpan& span) override;
  void release(Context&, int, const StateSpan&) override {}
  View stored(int k, int64_t first) const override;

 private:
  std::vector<StateSpan> spans_;
  std::vector<std::pair<size_t, size_t>> windows_;  // first and number of its spans
  std::vector<Tensor> states_;
};

}  // namespace snug
