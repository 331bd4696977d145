// Where the rows of a batch (B,T) stand: what ops with positions share. The kernels' is in
// row_positions_device.h.
//
//   p(b,t) = position + t - document_start[b][t]
//
// `position` is the StepState's (generation), or 0 without one; without document_start (B,T) a
// sequence is one document.
#pragma once

#include "engine/core/error.h"
#include "engine/memory/step_state.h"
#include "layers/ops/document_start.h"

namespace snug {

inline void expect_positions(const View& state, const View& document_start, int64_t B, int64_t T) {
  if (state.defined()) expect(state, "state", {{"bytes", step_state_shape()[0]}});
  if (document_start.defined()) expect_document_start(document_start, B, T);
}

// The position of the first column. Reads values: call it inside the op.
inline int64_t first_position(const View& state) {
  return state.defined() ? step_state(state)->position : 0;
}

// The position of every row: `first` is that of a document's first token.
class RowPositions {
 public:
  RowPositions(int64_t first, int64_t T, const View& document_start)
      : first_(first),
        T_(T),
        starts_(document_start.defined() ? document_start.as<int32_t>() : nullptr) {}
  int64_t operator()(int64_t row) const { return first_ + row % T_ - (starts_ ? starts_[row] : 0); }

 private:
  int64_t first_, T_;
  const int32_t* starts_;
};

}  // namespace snug
