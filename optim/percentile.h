// Clipping of each parameter's gradient by the norms that it had before, beside that by the norm of all
// (clip.h): with optim_args=percentile_clipping=p, as bitsandbytes spells it (up to 0.49; 100: off).
//   n^2    sum of squares of the parameter's gradient, unscaled and clipped by the norm of all, in f32
//   ring   100 numbers a parameter: ring[t % 100] = n^2 at update t from 1 on; at the first all of them
//   c^2    entry p of the ring in ascending order, from 0 on; this step's is among them
//   the gradient is multiplied by c / n where n > c
// A norm of 0 counts as any other, as in bitsandbytes: LoRA's A, whose first gradient is 0 while B is 0, stands
// still for up to 100 - p updates.
// The ring is one state more behind an optimizer's own, in f32 whatever those rest in. Sums are those of
// whole parameters, in the order of whole.h, and so the same on every place and in every store.
#pragma once

#include "optim/optimizer.h"

namespace snug {

inline constexpr const char* kPercentileArgument = "percentile_clipping";
inline constexpr const char* kGradientNorms = "gnorm_vec";  // the state
inline constexpr int kRingNorms = 100;
inline constexpr int kNoPercentile = 100;

int clip_percentile(const OptimizerConfig& c);
inline bool clips_by_percentile(const OptimizerConfig& c) {
  return clip_percentile(c) != kNoPercentile;
}
// Throws usage on what is no percentile, and for an optimizer that makes its steps of matrices.
void check_percentile(const OptimizerConfig& c, OptimReach reach);

// Takes the square of this step's norm into a ring; gives the gradient's factor.
float percentile_factor(float* ring, float square, int64_t updates, int percentile);

}  // namespace snug
