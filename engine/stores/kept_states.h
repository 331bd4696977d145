// KeptStates: what every store of states says alike: the spans that it serves, and of the set that it
// keeps how a state of them rests and how many numbers it has.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

class KeptStates : public StateStore {
 public:
  const std::vector<StateSpan>& spans() const final { return spans_; }
  int states() const final { return static_cast<int>(set_.names.size()); }
  int saved() const final { return states() + (late_ ? 1 : 0); }
  RestForm form(int k, const StateSpan& span) const final {
    return is_late(k) ? late_form_ : set_.form_of(k, span.param);
  }
  int64_t rows(const StateSpan& span) const final { return set_.rows_of(span.param); }
  int64_t numbers(int k, const StateSpan& span) const final {
    return is_late(k) ? span.elements : set_.numbers(k, span.param, span.elements);
  }
  // The gradient behind the states: its dtype, and where it is from an element of the flat range on.
  void set_late(DType dtype, std::function<View(int64_t)> at) {
    late_form_ = {.dtype = dtype, .bits = static_cast<int>(8 * size_of(dtype))};
    late_ = std::move(at);
  }
  // Views of them are valid as long as their window is open.
  void release(Context&, int, const StateSpan&) final {}

 protected:
  bool is_late(int k) const { return late_ && k == states(); }
  explicit KeptStates(StateSet set, std::vector<StateSpan> spans = {})
      : set_(std::move(set)), spans_(std::move(spans)) {}
  // Where a window begins among the spans and how many it has.
  std::span<const StateSpan> spans_of_window(const std::pair<size_t, size_t>& window) const {
    return std::span(spans_).subspan(window.first, window.second);
  }

  StateSet set_;
  std::vector<StateSpan> spans_;
  std::function<View(int64_t)> late_;  // empty: there is none
  RestForm late_form_;
};

}  // namespace snug
