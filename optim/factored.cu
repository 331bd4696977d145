#include "engine/memory/step_state.h"
#include "engine/simt/simt.h"
#include "optim/factored_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// As the driver of the CPU has them.
__device__ inline FactoredMoments moments_of(const StepState& s, float epsilon) {
  FactoredMoments m;
  m.factor = static_cast<float>(double{s.clip_factor} / double{s.loss_scale});
  m.keep = static_cast<float>(1.0 - double{s.bias_correction1});
  m.take = s.bias_correction1;
  m.epsilon = epsilon;
  m.first = s.updates == 0;
  return m;
}
__device__ inline float square(const FactoredMoments& m, float gradient) {
  const float g = gradient * m.factor;
  return g * g + m.epsilon;
}
__device__ inline float moved(const FactoredMoments& m, float before, double mean) {
  return (m.first ? 0.0f : m.keep * before) + m.take * static_cast<float>(mean);
}

__device__ inline void add_lanes(Shared<double> lanes, SIMT_WHERE) {
  for (int half = kNormLanes / 2; half > 0; half /= 2) {
    sync_threads(where.part(half));
    if (thread() < half) lanes[thread()] = lanes[thread()] + lanes[thread() + half];
  }
  sync_threads(where);
}

// A block works on one row.
__global__ void rows_kernel(const StepState* state, float epsilon, const float* gradient,
                            int64_t columns, float* row) {
  if (state->found_inf) return;  // all blocks, before any barrier
  SHARED_ARRAY(double, lanes, kNormLanes);
  const FactoredMoments m = moments_of(*state, epsilon);
  double sum = 0;
  for (int64_t j = thread(); j < columns; j += kNormLanes)
    sum += double{square(m, gradient[block() * columns + j])};
  lanes[thread()] = sum;
  add_lanes(lanes);
  if (thread() == 0) row[block()] = moved(m, row[block()], lanes[0] / static_cast<double>(columns));
}

// A thread works on one column of a run of rows.
__global__ void runs_kernel(const StepState* state, float epsilon, const float* gradient,
                            int64_t rows, int64_t columns, double* sums) {
  if (state->found_inf) return;
  const int64_t blocks = ceil_div(columns, int64_t{threads()});
  const int64_t run = block() / blocks, j = block() % blocks * threads() + thread();
  if (j >= columns) return;
  const FactoredMoments m = moments_of(*state, epsilon);
  const int64_t first = run * kFactoredRun,
                last = first + kFactoredRun < rows ? first + kFactoredRun : rows;
  double sum = 0;
  for (int64_t i = first; i < last; ++i) sum += double{square(m, gradient[i * columns + j])};
  sums[run * columns + j] = sum;
}

__global__ void columns_kernel(const StepState* state, float epsilon, int64_t rows, int64_t columns,
                               const double* sums, float* column, float* factors) {
  if (state->found_inf) return;
  const int64_t j = block() * threads() + thread();
  if (j >= columns) return;
  const FactoredMoments m = moments_of(*state, epsilon);
  double sum = 0;
  for (int64_t run = 0; run < ceil_div(rows, kFactoredRun); ++run) sum += sums[run * columns + j];
  const float now = moved(m, column[j], sum / static_cast<double>(rows));
  column[j] = now;
  factors[j] = static_cast<float>(1.0 / ::sqrt(double{now}));
}

// One block.
__global__ void row_factors_kernel(const StepState* state, int64_t rows, const float* row,
                                   float* factors) {
  if (state->found_inf) return;
  SHARED_ARRAY(double, lanes, kNormLanes);
  double sum = 0;
  for (int64_t i = thread(); i < rows; i += kNormLanes) sum += double{row[i]};
  lanes[thread()] = sum;
  add_lanes(lanes);
  const double mean = lanes[0] / static_cast<double>(rows);
  for (int64_t i = thread(); i < rows; i += kNormLanes)
    factors[i] = static_cast<float>(::sqrt(mean / double{row[i]}));
}

}  // namespace

template <class Queue>
void factored_moments_on(Queue& queue, float epsilon, const View& gradient, int64_t rows,
                         const View& state_of_matrix, float* factors, double* sums,
                         const View& state) {
  const auto* s = static_cast<const StepState*>(step_state(state));
  const int64_t columns = gradient.elements() / rows;
  const float* const g = gradient.as<const float>();
  float* const row = state_of_matrix.as<float>();
  constexpr int kThreads = 128;
  const int64_t blocks = ceil_div(columns, int64_t{kThreads});
  launch(queue, {.blocks = rows, .threads = kNormLanes}, "optimizer_rows", rows_kernel, s, epsilon,
         g, columns, row);
  launch(queue, {.blocks = blocks * ceil_div(rows, kFactoredRun), .threads = kThreads},
         "optimizer_runs", runs_kernel, s, epsilon, g, rows, columns, sums);
  launch(queue, {.blocks = blocks, .threads = kThreads}, "optimizer_columns", columns_kernel, s,
         epsilon, rows, columns, static_cast<const double*>(sums), row + rows, factors + rows);
  launch(queue, {.blocks = 1, .threads = kNormLanes}, "optimizer_row_factors", row_factors_kernel,
         s, rows, static_cast<const float*>(row), factors);
}

template void factored_moments_on(simt::Queue&, float, const View&, int64_t, const View&, float*,
                                  double*, const View&);

}  // namespace snug
