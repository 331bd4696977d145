#include "optim/factored.h"

#include <algorithm>
#include <cmath>

#include "engine/core/dtype.h"
#include "engine/core/parallel.h"

namespace snug {
namespace {

constexpr int64_t kStrip = 64;  // columns of a task
constexpr int64_t kRows = 8;    // rows of one

struct Lanes {
  double of[kNormLanes] = {};

  double sum() {
    for (int half = kNormLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) of[j] += of[j + half];
    return of[0];
  }
};

float square(const FactoredMoments& m, float gradient) {
  const float g = gradient * m.factor;
  return g * g + m.epsilon;
}

float moved(const FactoredMoments& m, float before, double mean) {
  return (m.first ? 0.0f : m.keep * before) + m.take * static_cast<float>(mean);
}

}  // namespace

template <class Gradient>
void factored_moments(int threads, const FactoredMoments& m, const Gradient* gradient, int64_t rows,
                      int64_t columns, float* state, float* factors, double* sums) {
  float* const row = state;
  float* const column = state + rows;
  parallel_for(threads, ceil_div(rows, kRows), [&](int64_t task) {
    for (int64_t i = task * kRows; i < std::min(rows, (task + 1) * kRows); ++i) {
      Lanes lanes;
      const Gradient* const g = gradient + i * columns;
      for (int64_t j0 = 0; j0 < columns; j0 += kNormLanes)
        for (int64_t j = j0; j < std::min(columns, j0 + kNormLanes); ++j)
          lanes.of[j - j0] += double{square(m, to_f32(g[j]))};
      row[i] = moved(m, row[i], lanes.sum() / static_cast<double>(columns));
    }
  });
  const int64_t strips = ceil_div(columns, kStrip), runs = ceil_div(rows, kFactoredRun);
  parallel_for(threads, strips * runs, [&](int64_t task) {
    const int64_t run = task / strips, j0 = task % strips * kStrip;
    const int64_t n = std::min(kStrip, columns - j0);
    double sum[kStrip] = {};
    for (int64_t i = run * kFactoredRun; i < std::min(rows, (run + 1) * kFactoredRun); ++i)
      for (int64_t j = 0; j < n; ++j)
        sum[j] += double{square(m, to_f32(gradient[i * columns + j0 + j]))};
    std::copy_n(sum, n, sums + run * columns + j0);
  });
  parallel_for(threads, strips, [&](int64_t strip) {
    for (int64_t j = strip * kStrip; j < std::min(columns, (strip + 1) * kStrip); ++j) {
      double sum = 0;
      for (int64_t run = 0; run < runs; ++run) sum += sums[run * columns + j];
      column[j] = moved(m, column[j], sum / static_cast<double>(rows));
      factors[rows + j] = static_cast<float>(1.0 / std::sqrt(double{column[j]}));
    }
  });
  Lanes lanes;
  for (int64_t i = 0; i < rows; ++i) lanes.of[i % kNormLanes] += double{row[i]};
  const double mean = lanes.sum() / static_cast<double>(rows);
  for (int64_t i = 0; i < rows; ++i)
    factors[i] = static_cast<float>(std::sqrt(mean / double{row[i]}));
}

template void factored_moments(int, const FactoredMoments&, const float*, int64_t, int64_t, float*,
                               float*, double*);
template void factored_moments(int, const FactoredMoments&, const bf16*, int64_t, int64_t, float*,
                               float*, double*);

}  // namespace snug
