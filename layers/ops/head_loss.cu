#include "engine/kernels/dispatch.h"
#include "engine/memory/step_state.h"
#include "engine/simt/map.h"
#include "engine/simt/reduce.h"
#include "layers/ops/head_loss_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

constexpr float kLowest = -3.402823466e38f;

// f(k, z[k], width) over the row in vectors of N, then f of single elements from the last whole
// vector on.
template <int N, class F>
__device__ inline void each_vector(int64_t n, F&& f) {
  const int64_t whole = n / N * N;
  for (int64_t i = int64_t{thread()} * N; i < whole; i += int64_t{threads()} * N)
    f(i, std::integral_constant<int, N>{});
  if constexpr (N > 1)
    for (int64_t i = whole + thread(); i < n; i += threads())
      f(i, std::integral_constant<int, 1>{});
}

struct RowSum {
  float top;
  double sum;  // of e^(z - top)
  __device__ float lse() const { return static_cast<float>(log_sum()); }
  // The logarithm of a sum of 1 .. V is taken in double: it stands once a row.
  __device__ double log_sum() const { return double{top} + ::log(sum); }
};

// Maximum and sum in one pass: a thread keeps the sum for the largest it has seen. Every thread
// gets the result; barriers.
template <int N>
__device__ inline RowSum row_sum(const float* z, int64_t V) {
  float top = kLowest, sum = 0.0f;
  each_vector<N>(V, [&](int64_t i, auto width) {
    constexpr int kN = decltype(width)::value;
    const auto v = Pack<float, kN>::load(z + i);
    float high = v[0];
    for (int k = 1; k < kN; ++k) high = max(high, v[k]);
    if (high > top) {
      sum *= exp(top - high);
      top = high;
    }
    for (int k = 0; k < kN; ++k) sum += exp(v[k] - top);
  });
  const float all = block_max(top);
  const double part = double{sum} * double{exp(top - all)};
  return {all, block_sum(part)};
}

// dz[v] = e^(z[v] - shift) factor, less `gradient` at the target, zeros from V on. dz may be z.
template <int N, class D>
__device__ inline void row_gradient(D* dz, const float* z, int64_t V, int64_t Vp, float shift,
                                    float factor, int64_t target, float gradient) {
  each_vector<N>(V, [&](int64_t i, auto width) {
    constexpr int kN = decltype(width)::value;
    const auto v = Pack<float, kN>::load(z + i);
    Pack<D, kN> out;
    for (int k = 0; k < kN; ++k) {
      const float p = exp(v[k] - shift) * factor;
      out[k] = from_f32<D>(i + k == target ? p - gradient : p);
    }
    out.store(dz + i);
  });
  for (int64_t i = V + thread(); i < Vp; i += threads()) dz[i] = from_f32<D>(0.0f);
}

template <int N, class D>
__device__ inline void fill_row(D* dz, int64_t Vp, float value) {
  each_vector<N>(Vp, [&](int64_t i, auto width) {
    Pack<D, decltype(width)::value> out;
    for (int k = 0; k < decltype(width)::value; ++k) out[k] = from_f32<D>(value);
    out.store(dz + i);
  });
}

__device__ inline bool outside(int64_t target, int64_t V) {
  return target < 0 || target >= V;
}

// A block a row.
template <int N>
__global__ void head_loss_forward_kernel(float* nll, float* lse, const float* z,
                                         const int32_t* targets, int64_t V, int64_t Vp) {
  const int64_t row = block(), target = targets[row];
  const RowSum r = row_sum<N>(z + row * Vp, V);
  if (thread() > 0) return;
  lse[row] = r.lse();
  nll[row] = target == kIgnoredTarget ? 0.0f
             : outside(target, V)     ? __builtin_nanf("")
                                  : static_cast<float>(r.log_sum() - double{z[row * Vp + target]});
}

// The branches on the target are of whole blocks, and before any barrier.
template <class D, int N>
__global__ void head_loss_train_kernel(D* dz, float* nll, const float* z, const int32_t* targets,
                                       int64_t V, int64_t Vp, const StepState* state) {
  const int64_t row = block(), target = targets[row];
  if (outside(target, V)) {
    const float value = target == kIgnoredTarget ? 0.0f : __builtin_nanf("");
    fill_row<N>(dz + row * Vp, Vp, value);
    if (thread() == 0) nll[row] = value;
    return;
  }
  const float hit = z[row * Vp + target];  // before dz may write over it
  const RowSum r = row_sum<N>(z + row * Vp, V);
  if (thread() == 0) nll[row] = static_cast<float>(r.log_sum() - double{hit});
  const float gradient = state->inverse_tokens * state->loss_scale;
  row_gradient<N>(dz + row * Vp, z + row * Vp, V, Vp, r.top,
                  static_cast<float>(double{gradient} / r.sum), target, gradient);
}

template <class D, int N>
__global__ void head_loss_backward_kernel(D* dz, const float* dnll, const float* lse,
                                          const float* z, const int32_t* targets, int64_t V,
                                          int64_t Vp) {
  const int64_t row = block(), target = targets[row];
  if (outside(target, V))
    return fill_row<N>(dz + row * Vp, Vp, target == kIgnoredTarget ? 0.0f : __builtin_nanf(""));
  row_gradient<N>(dz + row * Vp, z + row * Vp, V, Vp, lse[row], dnll[row], target, dnll[row]);
}

// One block.
__global__ void head_loss_collect_kernel(StepState* state, const float* nll, const int32_t* targets,
                                         int64_t rows) {
  double sum = 0;
  int64_t trained = 0;
  for (int64_t n = thread(); n < rows; n += threads()) {
    sum += double{nll[n]};
    trained += targets[n] == kIgnoredTarget ? 0 : 1;
  }
  const double total = block_sum(sum);
  const int64_t count = block_sum(trained);
  if (thread() > 0) return;
  state->loss_sum += total;
  state->loss_tokens += count;
}

constexpr int kWide = 8;  // two vectors of logits, one of a 16-bit dz

bool wide(const View& z, const View& dz) {
  return z.shape[1] % kVector<bf16> == 0 && aligned_to_vectors(z.data) &&
         aligned_to_vectors(dz.data);
}

}  // namespace

template <class Queue>
void head_loss_forward_rows_on(Queue& queue, const View& nll, const View& lse, const View& z,
                               const View& targets, int64_t V, int threads) {
  launch(queue, {.blocks = z.shape[0], .threads = threads}, "head_loss_forward",
         wide(z, {}) ? head_loss_forward_kernel<kWide> : head_loss_forward_kernel<1>,
         nll.as<float>(), lse.as<float>(), z.as<const float>(), targets.as<const int32_t>(), V,
         z.shape[1]);
}

template <class Queue>
void head_loss_train_rows_on(Queue& queue, const View& dz, const View& nll, const View& z,
                             const View& targets, int64_t V, const View& state, int threads) {
  dispatch_float(dz, "dz", [&](auto tag) {
    using D = decltype(tag);
    launch(queue, {.blocks = z.shape[0], .threads = threads}, "head_loss_train",
           wide(z, dz) ? head_loss_train_kernel<D, kWide> : head_loss_train_kernel<D, 1>,
           dz.as<D>(), nll.as<float>(), z.as<const float>(), targets.as<const int32_t>(), V,
           z.shape[1], static_cast<const StepState*>(step_state(state)));
  });
}

template <class Queue>
void head_loss_backward_rows_on(Queue& queue, const View& dz, const View& dnll, const View& lse,
                                const View& z, const View& targets, int64_t V, int threads) {
  dispatch_float(dz, "dz", [&](auto tag) {
    using D = decltype(tag);
    launch(queue, {.blocks = z.shape[0], .threads = threads}, "head_loss_backward",
           wide(z, dz) ? head_loss_backward_kernel<D, kWide> : head_loss_backward_kernel<D, 1>,
           dz.as<D>(), dnll.as<const float>(), lse.as<const float>(), z.as<const float>(),
           targets.as<const int32_t>(), V, z.shape[1]);
  });
}

template <class Queue>
void head_loss_collect_on(Queue& queue, const View& state, const View& nll, const View& targets,
                          int threads) {
  launch(queue, {.blocks = 1, .threads = threads}, "head_loss_collect", head_loss_collect_kernel,
         step_state(state), nll.as<const float>(), targets.as<const int32_t>(), targets.elements());
}

template void head_loss_forward_rows_on(simt::Queue&, const View&, const View&, const View&,
                                        const View&, int64_t, int);
template void head_loss_train_rows_on(simt::Queue&, const View&, const View&, const View&,
                                      const View&, int64_t, const View&, int);
template void head_loss_backward_rows_on(simt::Queue&, const View&, const View&, const View&,
                                         const View&, const View&, int64_t, int);
template void head_loss_collect_on(simt::Queue&, const View&, const View&, const View&, int);

}  // namespace snug
