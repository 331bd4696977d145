// row_positions.h for kernels.
#pragma once

#include "engine/simt/simt.h"
#include "layers/ops/row_positions.h"

namespace snug {
inline namespace SIMT_SIDE {

// Where every row stands; state and starts may be null.
struct RowPlaces {
  const StepState* state;
  const int32_t* starts;
  int64_t tokens;  // T

  __device__ int64_t operator()(int64_t row) const {
    return (state ? state->position : 0) + row % tokens - (starts ? starts[row] : 0);
  }
};

inline RowPlaces row_places(const View& state, const View& document_start, int64_t T) {
  return {state.defined() ? step_state(state) : nullptr,
          document_start.defined() ? document_start.as<const int32_t>() : nullptr, T};
}

}  // namespace SIMT_SIDE
}  // namespace snug
