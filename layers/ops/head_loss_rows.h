// The softmax of one row of logits, in place. Internal to the head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/core/math.h"

namespace snug {

// Columns whose sum is kept in fp32 lanes before it goes to fp64.
inline constexpr int64_t kSumColumns = 1024;
inline constexpr int64_t kSumLanes = 16;

inline float row_max(const float* x, int64_t n) {
  float lanes[kSumLanes];
  for (float& l : lanes) l = x[0];
  int64_t j = 0;
  for (; j + kSumLanes <= n; j += kSumLanes)
    for (int64_t l = 0; l < kSumLanes; ++l) lanes[l] = std::max(lanes[l], x[j + l]);
  for (; j < n; ++j) lanes[0] = std::max(lanes[0], x[j]);
  return *std::max_element(lanes, lanes + kSumLanes);
}

inline double lane_sum(const float* x, int64_t n) {
  float lanes[kSumLanes] = {};
  int64_t j = 0;
  for (; j + kSumLanes <= n; j += kSumLanes)
    for (int64_t l = 0; l < kSumLanes; ++l) lanes[l] += x[j + l];
  for (int64_t l = 0; j < n; ++j, ++l) lanes[l] += x[j];
  double sum = 0;
  for (const float l : lanes) sum += l;
  return sum;
}

// x = e^(x - shift); returns the sum.
inline double row_exp(float* x, int64_t n, float shift) {
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kSumColumns) {
    float* part = x + begin;
    const int64_t count = std::min(kSumColumns, n - begin);
    for (int64_t j = 0; j < count; ++j) part[j] = fast_exp(part[j] - shift);
    sum += lane_sum(part, count);
  }
  return sum;
}

}  // namespace snug
