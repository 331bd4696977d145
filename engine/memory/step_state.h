// StepState: every number that changes from step to step lives in this one small tensor, so that a
// program takes none by value and its recording is valid for every step.
#pragma once

#include "engine/core/view.h"

namespace snug {

inline constexpr int kMaxGroups = 4;  // optimizer groups: decayed, not decayed, ...

struct StepState {
  // Written by the host before a program.
  uint64_t seed;
  int64_t step;          // optimizer steps done: the random key of dropout
  int64_t first_sample;  // number, in the global batch, of the micro-batch's first sequence
  float inverse_tokens;  // 1 / trained tokens of the whole window, over all micro-steps and ranks
  float learning_rate[kMaxGroups];
  float bias_correction1;  // 1 - beta1^t of Adam, t = updates applied including this one
  float bias_correction2;
  float loss_scale;        // gradients are multiplied by it; 1 without loss scaling
  int32_t growth_tracker;  // steps since loss_scale changed, written by programs with it
  int64_t position;        // generation: tokens already in the KV cache
  int64_t updates;         // updates applied before this one
  // Written by programs, read by the host after them.
  double loss_sum;            // sum of token losses of the window so far
  int64_t loss_tokens;        // trained tokens of the window so far
  double grad_square_sum;     // sum of squares of all gradients, unscaled
  float clip_factor;          // gradients are multiplied by it in the update
  int32_t found_inf;          // 1 if a gradient was not finite
  int64_t first_bad_element;  // flat element of the first gradient that was not finite, or -1
};

inline StepState* step_state(const View& v) {
  return reinterpret_cast<StepState*>(v.as<uint8_t>());
}
inline Shape step_state_shape() {
  return {static_cast<int64_t>(sizeof(StepState))};
}

}  // namespace snug
