#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/memory/step_state.h"
#include "engine/simt/map.h"
#include "engine/simt/simt.h"
#include "optim/muon_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

constexpr int kMuonThreads = 256;

struct MuonTimes {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

__global__ void muon_momentum_kernel(const StepState* state, MuonNumbers numbers, int64_t n,
                                     const float* gradient, float* momentum, float* to) {
  SHARED_ARRAY(float, of_step, 1);
  if (thread() == 0)
    of_step[0] = static_cast<float>(double{state->clip_factor} / double{state->loss_scale});
  sync_threads();
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  if (state->found_inf) {
    to[i] = 0.0f;
    return;
  }
  const float factor = of_step[0];
  const float g = gradient[i] * factor, before = state->updates == 0 ? 0.0f : momentum[i];
  const float b = before + numbers.take * (g - before);
  momentum[i] = b;
  to[i] = numbers.nesterov ? g + numbers.momentum * (b - g) : b;
}

// A block works on one chunk, its threads are the lanes of whole.h.
__global__ void muon_sums_kernel(int64_t n, const float* x, double* sums) {
  SHARED_ARRAY(double, lanes, kNormLanes);
  const int64_t begin = block() * kChunkElements,
                last = begin + kChunkElements < n ? begin + kChunkElements : n;
  double sum = 0;
  for (int64_t i = begin + thread(); i < last; i += kNormLanes) sum += double{x[i]} * double{x[i]};
  lanes[thread()] = sum;
  for (int half = kNormLanes / 2; half > 0; half /= 2) {
    sync_threads();
    if (thread() < half) lanes[thread()] = lanes[thread()] + lanes[thread() + half];
  }
  sync_threads();
  if (thread() == 0) sums[block()] = lanes[0];
}

// One thread: the chunks in order.
__global__ void muon_norm_kernel(int64_t chunks, float epsilon, double* sums) {
  if (thread() != 0) return;
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += sums[c];
  const double norm = ::sqrt(sum);
  sums[chunks] = norm > double{epsilon} ? norm : double{epsilon};
}

template <class To>
__global__ void muon_divide_kernel(int64_t n, const float* x, const double* norm, To* to) {
  const int64_t i = block() * threads() + thread();
  if (i < n) to[i] = from_f32<To>(x[i] / static_cast<float>(*norm));
}

}  // namespace

template <class Queue>
void muon_momentum_on(Queue& queue, const MuonNumbers& numbers, const View& to,
                      const View& momentum, const View& gradient, const View& state) {
  const int64_t n = to.elements();
  launch(queue, {.blocks = ceil_div(n, int64_t{kMuonThreads}), .threads = kMuonThreads},
         "muon_momentum", muon_momentum_kernel, static_cast<const StepState*>(step_state(state)),
         numbers, n, gradient.as<const float>(), momentum.as<float>(), to.as<float>());
}

template <class Queue>
void muon_normalize_on(Queue& queue, float epsilon, const View& to, const View& x,
                       const View& sums) {
  const int64_t n = x.elements(), chunks = ceil_div(n, kChunkElements);
  auto* const all = sums.as<double>();
  launch(queue, {.blocks = chunks, .threads = kNormLanes}, "muon_sums", muon_sums_kernel, n,
         x.as<const float>(), all);
  launch(queue, {.blocks = 1, .threads = kWarp}, "muon_norm", muon_norm_kernel, chunks, epsilon,
         all);
  dispatch_float(to, "to", [&](auto tag) {
    using To = decltype(tag);
    launch(queue, {.blocks = ceil_div(n, int64_t{kMuonThreads}), .threads = kMuonThreads},
           "muon_divide", muon_divide_kernel<To>, n, x.as<const float>(),
           static_cast<const double*>(all + chunks), to.as<To>());
  });
}

template <class Queue>
void muon_scaled_on(Queue& queue, const View& to, const View& x, float factor) {
  dispatch_float(x, "x", [&](auto from) {
    dispatch_float(to, "to", [&](auto tag) {
      simt::map(queue, "muon_scaled", MuonTimes{factor}, kMuonThreads, x.elements(),
                to.as<decltype(tag)>(), x.as<const decltype(from)>());
    });
  });
}

template void muon_momentum_on(simt::Queue&, const MuonNumbers&, const View&, const View&,
                               const View&, const View&);
template void muon_normalize_on(simt::Queue&, float, const View&, const View&, const View&);
template void muon_scaled_on(simt::Queue&, const View&, const View&, float);

}  // namespace snug
