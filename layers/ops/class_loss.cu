#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/memory/step_state.h"
#include "engine/simt/reduce.h"
#include "layers/ops/class_loss_simt.h"
#include "layers/ops/ignored_target.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

constexpr float kLowest = -3.402823466e38f;

// One of the two, as the kind has it.
struct Targets {
  const int32_t* labels;
  const float* values;
  __device__ bool ignored(int64_t m, int64_t K) const {
    return labels ? labels[m] == kIgnoredTarget : values[m * K] != values[m * K];
  }
};

struct Softmax {
  float top, sum;  // of e^(z - top)
};
// By a warp; every lane gets it.
__device__ inline Softmax softmax_of(const float* z, int64_t K) {
  float top = kLowest, sum = 0.0f;
  for (int64_t k = lane(); k < K; k += kWarp) top = max(top, z[k]);
  top = warp_max(top);
  for (int64_t k = lane(); k < K; k += kWarp) sum += exp(z[k] - top);
  return {top, warp_sum(sum)};
}

// A warp a row; what is decided for a row is decided for the whole warp.
__device__ inline float row_loss(const float* z, const Targets& targets, ClassLoss kind, int64_t m,
                                 int64_t K) {
  if (targets.ignored(m, K)) return 0.0f;
  if (kind == ClassLoss::cross_entropy) {
    const int64_t label = targets.labels[m];
    if (label < 0 || label >= K) return __builtin_nanf("");
    const Softmax s = softmax_of(z, K);
    return static_cast<float>(double{s.top} + ::log(double{s.sum}) - double{z[label]});
  }
  double sum = 0;
  for (int64_t k = lane(); k < K; k += kWarp) {
    const float x = z[k], t = targets.values[m * K + k];
    if (kind == ClassLoss::binary_cross_entropy)
      sum += double{max(x, 0.0f)} - double{x} * double{t} + ::log(1.0 + double{exp(-abs(x))});
    else
      sum += double{x - t} * double{x - t};
  }
  return static_cast<float>(warp_sum(sum) / static_cast<double>(K));
}

__global__ void class_loss_forward_row_per_warp_kernel(float* loss, const float* logits,
                                                       Targets targets, ClassLoss kind,
                                                       int64_t rows, int64_t K) {
  const int64_t m = block() * warps() + warp();
  if (m >= rows) return;
  const float value = row_loss(logits + m * K, targets, kind, m, K);
  if (lane() == 0) loss[m] = value;
}

// One block.
__global__ void class_loss_collect_kernel(StepState* state, const float* loss, Targets targets,
                                          int64_t rows, int64_t K) {
  double sum = 0;
  int64_t trained = 0;
  for (int64_t m = thread(); m < rows; m += threads()) {
    sum += double{loss[m]};
    trained += targets.ignored(m, K) ? 0 : 1;
  }
  const double total = block_sum(sum);
  const int64_t count = block_sum(trained);
  if (thread() > 0) return;
  state->loss_sum += total;
  state->loss_tokens += count;
}

__device__ inline float sigmoid(float x) {
  const float e = exp(-abs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// dz may be z: a lane writes where it alone has read, behind the sums of the row.
template <class D>
__global__ void class_loss_backward_row_per_warp_kernel(D* dlogits, const float* logits,
                                                        Targets targets, ClassLoss kind,
                                                        int64_t rows, int64_t K,
                                                        const StepState* state) {
  const int64_t m = block() * warps() + warp();
  if (m >= rows) return;
  const float* const z = logits + m * K;
  const float factor = state->inverse_tokens * state->loss_scale;
  const float share = factor / static_cast<float>(K);
  const bool ignored = targets.ignored(m, K), softmax = kind == ClassLoss::cross_entropy;
  const int64_t label = softmax ? targets.labels[m] : 0;
  Softmax s{0.0f, 1.0f};
  if (softmax && !ignored) s = softmax_of(z, K);
  for (int64_t k = lane(); k < K; k += kWarp) {
    float value;
    if (ignored)
      value = 0.0f;
    else if (label < 0 || label >= K)
      value = __builtin_nanf("");
    else if (softmax)
      value = factor * (exp(z[k] - s.top) / s.sum - (k == label ? 1.0f : 0.0f));
    else if (kind == ClassLoss::binary_cross_entropy)
      value = share * (sigmoid(z[k]) - targets.values[m * K + k]);
    else
      value = share * 2.0f * (z[k] - targets.values[m * K + k]);
    dlogits[m * K + k] = from_f32<D>(value);
  }
}

Targets targets_of(const View& targets) {
  if (targets.dtype == DType::i32) return {targets.as<const int32_t>(), nullptr};
  return {nullptr, targets.as<const float>()};
}

Dims rows_of(const View& logits, int threads) {
  return {.blocks = ceil_div(logits.shape[0], int64_t{threads / kWarp}), .threads = threads};
}

}  // namespace

template <class Queue>
void class_loss_forward_on(Queue& queue, const View& loss, const View& logits, const View& targets,
                           ClassLoss kind, const View& state, int threads) {
  const int64_t M = logits.shape[0], K = logits.shape[1];
  launch(queue, rows_of(logits, threads), "class_loss_forward_row_per_warp",
         class_loss_forward_row_per_warp_kernel, loss.as<float>(), logits.as<const float>(),
         targets_of(targets), kind, M, K);
  if (state.defined())
    launch(queue, {.blocks = 1, .threads = threads}, "class_loss_collect",
           class_loss_collect_kernel, step_state(state), loss.as<const float>(),
           targets_of(targets), M, K);
}

template <class Queue>
void class_loss_backward_on(Queue& queue, const View& dlogits, const View& logits,
                            const View& targets, ClassLoss kind, const View& state, int threads) {
  dispatch_float(dlogits, "dlogits", [&](auto tag) {
    using D = decltype(tag);
    launch(queue, rows_of(logits, threads), "class_loss_backward_row_per_warp",
           class_loss_backward_row_per_warp_kernel<D>, dlogits.as<D>(), logits.as<const float>(),
           targets_of(targets), kind, logits.shape[0], logits.shape[1],
           static_cast<const StepState*>(step_state(state)));
  });
}

template void class_loss_forward_on(simt::Queue&, const View&, const View&, const View&, ClassLoss,
                                    const View&, int);
template void class_loss_backward_on(simt::Queue&, const View&, const View&, const View&, ClassLoss,
                                     const View&, int);

}  // namespace snug
