// Of one pair, on the host and in kernels: layers/ops/reward_loss.h has the formulas.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define SNUG_REWARD_LOSS __host__ __device__ inline
#define SNUG_REWARD_LOSS_SIDE by_nvcc
#else
#define SNUG_REWARD_LOSS inline
#define SNUG_REWARD_LOSS_SIDE by_the_host
#endif

namespace snug {

struct RewardValue {
  double loss, chosen, rejected;  // and its slopes
};

inline namespace SNUG_REWARD_LOSS_SIDE {

// Without overflow; NaN stays one.
SNUG_REWARD_LOSS RewardValue reward_loss_value(double c, double r, double margin, double center) {
  const double x = c - r - margin, sum = c + r, push = 2.0 * center * sum;
  const double e = ::exp(x < 0 ? x : -x);                // of -|x|
  const double sigmoid = (x < 0 ? 1.0 : e) / (1.0 + e);  // of -x
  return {(x < 0 ? -x : 0.0) + ::log1p(e) + center * sum * sum, push - sigmoid, push + sigmoid};
}

}  // namespace SNUG_REWARD_LOSS_SIDE
}  // namespace snug
