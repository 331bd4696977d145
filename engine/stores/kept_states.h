// KeptStates: what every store of states says alike: the spans that it serves, and of the set that it
// keeps how a state of them rests and how many numbers it has.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "engine/seams/state_store.h"

namespace snug {

class KeptStates : public StateStore {
 public:
  const std::vector<StateSpan>& spans() const final { return spans_; }
  int states() const final { return static_cast<int>(set_.names.size()); }
  RestForm form(int k, const StateSpan& span) const final { return set_.form_of(k, span.param); }
  int64_t rows(const StateSpan& span) const final { return set_.rows_of(span.param); }
  int64_t numbers(int k, const StateSpan& span) const final {
    return set_.numbers(k, span.param, span.elements);
  }
  // Views of them are valid as long as their window is open.
  void release(Context&, int, const StateSpan&) final {}

 protected:
  explicit KeptStates(StateSet set, std::vector<StateSpan> spans = {})
      : set_(std::move(set)), spans_(std::move(spans)) {}
  // Where a window begins among the spans and how many it has.
  std::span<const StateSpan> spans_of_window(const std::pair<size_t, size_t>& window) const {
    return std::span(spans_).subspan(window.first, window.second);
  }

  StateSet set_;
  std::vector<StateSpan> spans_;
};

}  // namespace snug
