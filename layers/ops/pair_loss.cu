#include "engine/core/units.h"
#include "engine/memory/step_state.h"
#include "engine/simt/reduce.h"
#include "layers/ops/pair_loss_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// Rows that a column of logps sums: of the chosen answer, of the rejected sequence, of the chosen
// sequence; cut to those that are there.
struct Rows {
  int64_t begin, end;
};
__device__ inline Rows rows_of(const int32_t* pair, int column, int64_t n) {
  const int64_t begin = pair[column == 0   ? 5
                             : column == 1 ? 1
                                           : 0],
                end = pair[column == 1 ? 2 : 1];
  return {begin < 0 ? 0 : begin, end > n ? n : end};
}

__device__ inline PairValue value_of(const float* logps, const float* reference,
                                     const int32_t* pair, int64_t p, const PairLoss& kind,
                                     int64_t columns) {
  const double k = compared_with(kind, pair);
  double c = double{logps[columns * p]} - k, r = double{logps[columns * p + 1]} - k;
  if (reference) {
    c -= double{reference[2 * p]};
    r -= double{reference[2 * p + 1]};
  }
  return pair_loss_value(kind, c, r, double{static_cast<float>(pair[3])},
                         double{static_cast<float>(pair[4])});
}

__global__ void sequence_logps_row_per_warp_kernel(float* logps, const float* nll,
                                                   const int32_t* pairs, int64_t sums,
                                                   int64_t columns, int64_t n) {
  const int64_t s = block() * warps() + warp();
  if (s >= sums) return;
  const int32_t* const pair = pairs + s / columns * kPairColumns;
  double sum = 0;
  if (pair[0] >= 0) {
    const Rows rows = rows_of(pair, static_cast<int>(s % columns), n);
    for (int64_t i = rows.begin + lane(); i < rows.end; i += kWarp) sum += double{nll[i]};
  }
  sum = warp_sum(sum);
  if (lane() == 0) logps[s] = static_cast<float>(0.0 - sum);
}

// One block.
__global__ void pair_loss_forward_kernel(float* loss, const float* logps, const float* reference,
                                         const int32_t* pairs, PairLoss kind, int64_t columns,
                                         int64_t count, StepState* state) {
  double sum = 0;
  int64_t trained = 0;
  for (int64_t p = thread(); p < count; p += threads()) {
    const int32_t* const pair = pairs + p * kPairColumns;
    const bool none = pair[0] < 0;
    const float value =
        none ? 0.0f
             : static_cast<float>(value_of(logps, reference, pair, p, kind, columns).loss +
                                  whole_loss(kind, pair, logps + columns * p));
    loss[p] = value;
    sum += double{value};
    trained += none ? 0 : 1;
  }
  const double total = block_sum(sum);
  const int64_t all = block_sum(trained);
  if (thread() > 0) return;
  state->loss_sum += total;
  state->loss_tokens += all;
}

__global__ void pair_loss_zero_kernel(float* dnll, int64_t n) {
  const int64_t i = block() * threads() + thread();
  if (i < n) dnll[i] = 0.0f;
}

__global__ void pair_loss_backward_row_per_warp_kernel(float* dnll, const float* logps,
                                                       const float* reference, const int32_t* pairs,
                                                       PairLoss kind, int64_t columns,
                                                       int64_t count, int64_t n,
                                                       const StepState* state) {
  const int64_t p = block() * warps() + warp();
  if (p >= count) return;
  const int32_t* const pair = pairs + p * kPairColumns;
  if (pair[0] < 0) return;
  const PairValue value = value_of(logps, reference, pair, p, kind, columns);
  const double factor = double{state->inverse_tokens} * double{state->loss_scale};
  const double whole = whole_weight(kind, pair);
  for (int part = 0; part < 3; ++part) {
    Rows rows = rows_of(pair, part, n);
    if (part == 2 && rows.end > pair[5]) rows.end = pair[5];  // what is before the answer
    const double slope = part == 0   ? whole - value.chosen
                         : part == 1 ? 0.0 - value.rejected
                                     : whole;
    const auto rounded = static_cast<float>(slope * factor);
    for (int64_t i = rows.begin + lane(); i < rows.end; i += kWarp) dnll[i] = rounded;
  }
}

const float* reference_of(const View& reference) {
  return reference.defined() ? reference.as<const float>() : nullptr;
}

Dims a_warp_each(int64_t n, int threads) {
  return {.blocks = ceil_div(n, int64_t{threads / kWarp}), .threads = threads};
}

}  // namespace

template <class Queue>
void sequence_logps_on(Queue& queue, const View& logps, const View& nll, const View& pairs,
                       int threads) {
  const int64_t sums = logps.elements();
  launch(queue, a_warp_each(sums, threads), "sequence_logps_row_per_warp",
         sequence_logps_row_per_warp_kernel, logps.as<float>(), nll.as<const float>(),
         pairs.as<const int32_t>(), sums, logps.shape[1], nll.elements());
}

template <class Queue>
void pair_loss_forward_on(Queue& queue, const View& loss, const View& logps, const View& reference,
                          const View& pairs, const PairLoss& kind, const View& state, int threads) {
  launch(queue, {.blocks = 1, .threads = threads}, "pair_loss_forward", pair_loss_forward_kernel,
         loss.as<float>(), logps.as<const float>(), reference_of(reference),
         pairs.as<const int32_t>(), kind, logps.shape[1], pairs.shape[0], step_state(state));
}

template <class Queue>
void pair_loss_backward_on(Queue& queue, const View& dnll, const View& logps, const View& reference,
                           const View& pairs, const PairLoss& kind, const View& state,
                           int threads) {
  const int64_t n = dnll.elements(), count = pairs.shape[0];
  launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "pair_loss_zero",
         pair_loss_zero_kernel, dnll.as<float>(), n);
  launch(queue, a_warp_each(count, threads), "pair_loss_backward_row_per_warp",
         pair_loss_backward_row_per_warp_kernel, dnll.as<float>(), logps.as<const float>(),
         reference_of(reference), pairs.as<const int32_t>(), kind, logps.shape[1], count, n,
         static_cast<const StepState*>(step_state(state)));
}

template void sequence_logps_on(simt::Queue&, const View&, const View&, const View&, int);
template void pair_loss_forward_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                   const PairLoss&, const View&, int);
template void pair_loss_backward_on(simt::Queue&, const View&, const View&, const View&,
                                    const View&, const PairLoss&, const View&, int);

}  // namespace snug
