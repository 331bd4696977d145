// Means of squares of a matrix, kept as those of its rows and of its columns: what a factored state is
// made of, and the factors by which a rule (optim/rules/adafactor.h) divides by their root.
//   s = (factor g)^2 + epsilon, in fp32; sums in double
//   row_i  = keep row_i + take mean_j s      lanes of whole.h
//   col_j  = keep col_j + take mean_i s      runs of kFactoredRun rows, each in order, then run by run
//   factors: sqrt(mean(row) / row_i), then 1 / sqrt(col_j)
// The same bits on every place; before the first update states count as zero.
#pragma once

#include "engine/core/units.h"
#include "optim/whole.h"

namespace snug {

inline constexpr int64_t kFactoredRun = 512;

struct FactoredMoments {
  float factor, keep, take, epsilon;
  bool first;
};

// Numbers of the state, and of the factors, of a matrix; and room for sums, f64.
inline int64_t factored_numbers(int64_t rows, int64_t elements) {
  return rows + elements / rows;
}
inline int64_t factored_sums(int64_t rows, int64_t elements) {
  return ceil_div(rows, kFactoredRun) * (elements / rows) + 1;
}

// Gradient: float or bf16, (rows, columns).
template <class Gradient>
void factored_moments(int threads, const FactoredMoments& m, const Gradient* gradient, int64_t rows,
                      int64_t columns, float* state, float* factors, double* sums);

}  // namespace snug
