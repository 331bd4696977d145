#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "optim/adamw_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// What stays the same over all steps.
struct AdamConstants {
  float one_minus_beta1, beta2, one_minus_beta2, epsilon;
  double weight_decay;
};

// The numbers of one step. Scalars are combined in double and rounded once, as on the CPU.
struct AdamStep {
  float factor, rate, scale, keep;
  bool first;
};

__device__ inline AdamStep adam_step(const StepState& s, const AdamConstants& k, int group) {
  const double learning_rate = s.learning_rate[group];
  return {static_cast<float>(double{s.clip_factor} / double{s.loss_scale}),
          static_cast<float>(learning_rate / double{s.bias_correction1}),
          static_cast<float>(1.0 / ::sqrt(double{s.bias_correction2})),
          static_cast<float>(1.0 - learning_rate * k.weight_decay), s.updates == 0};
}

template <class Gradient, class Weight, int N>
__device__ inline void adamw_pack(float* master, const Gradient* gradient, float* exp_avg,
                                  float* exp_avg_sq, Weight* weights, const AdamStep& s,
                                  const AdamConstants& k) {
  auto p = Pack<float, N>::load(master);
  const auto g_in = Pack<Gradient, N>::load(gradient);
  Pack<float, N> m{}, v{};
  if (!s.first) {
    m = Pack<float, N>::load(exp_avg);
    v = Pack<float, N>::load(exp_avg_sq);
  }
  Pack<Weight, N> w;
  for (int i = 0; i < N; ++i) {
    const float g = to_f32(g_in[i]) * s.factor;
    m[i] = m[i] + k.one_minus_beta1 * (g - m[i]);
    v[i] = k.beta2 * v[i] + k.one_minus_beta2 * (g * g);
    p[i] = p[i] * s.keep - s.rate * (m[i] / (sqrt(v[i]) * s.scale + k.epsilon));
    w[i] = from_f32<Weight>(p[i]);
  }
  p.store(master);
  m.store(exp_avg);
  v.store(exp_avg_sq);
  if (weights) w.store(weights);
}

// Each thread takes several vectors, so that the divisions in double weigh nothing: some devices do
// them at a 64th of the rate.
template <class Gradient, class Weight, int N>
__global__ void adamw_kernel(float* master, const Gradient* gradient, float* exp_avg,
                             float* exp_avg_sq, Weight* weights, int64_t n, const StepState* state,
                             AdamConstants constants, int group) {
  if (state->found_inf) return;  // all blocks, before any barrier
  SHARED_ARRAY(AdamStep, step_in_block, 1);
  if (thread() == 0) step_in_block[0] = adam_step(*state, constants, group);
  sync_threads();
  const AdamStep step = step_in_block[0];
  const auto at = [=](int64_t i, auto width) {
    constexpr int kWidth = decltype(width)::value;
    adamw_pack<Gradient, Weight, kWidth>(master + i, gradient + i, exp_avg + i, exp_avg_sq + i,
                                         weights ? weights + i : weights, step, constants);
  };
  for (int64_t i = (block() * threads() + thread()) * N; i < n; i += blocks() * threads() * N) {
    if (i + N <= n) {
      at(i, std::integral_constant<int, N>{});
    } else {
      for (int64_t j = i; j < n; ++j) at(j, std::integral_constant<int, 1>{});
    }
  }
}

}  // namespace

template <class Queue>
void adamw_update_on(Queue& queue, const OptimizerConfig& config, const AdamwSpan& span,
                     const View& state, int threads) {
  constexpr int kWide = kVector<float>;
  constexpr int kVectorsPerThread = 8;
  const int64_t n = span.master.elements();
  const AdamConstants constants{
      static_cast<float>(1.0 - config.adam_beta1), static_cast<float>(config.adam_beta2),
      static_cast<float>(1.0 - config.adam_beta2), static_cast<float>(config.adam_epsilon),
      span.group == kGroupDecay ? config.weight_decay : 0.0};
  bool wide = true;
  for (const View* v :
       {&span.master, &span.gradient, &span.exp_avg, &span.exp_avg_sq, &span.weights})
    wide = wide && aligned_to_vectors(v->data);
  const auto run_with = [&](const auto* gradient, auto* weights) {
    using Gradient = std::remove_cv_t<std::remove_pointer_t<decltype(gradient)>>;
    using Weight = std::remove_pointer_t<decltype(weights)>;
    const int64_t vectors = ceil_div(n, wide ? kWide : 1);
    launch(queue,
           {.blocks = ceil_div(vectors, int64_t{threads} * kVectorsPerThread), .threads = threads},
           "adamw",
           wide ? adamw_kernel<Gradient, Weight, kWide> : adamw_kernel<Gradient, Weight, 1>,
           span.master.as<float>(), gradient, span.exp_avg.as<float>(), span.exp_avg_sq.as<float>(),
           weights, n, static_cast<const StepState*>(step_state(state)), constants, span.group);
  };
  const auto run = [&](auto* weights) {
    dispatch_gradient(span.gradient, "gradient", [&](auto tag) {
      run_with(span.gradient.as<const decltype(tag)>(), weights);
    });
  };
  if (!span.weights.defined()) {
    run(static_cast<bf16*>(nullptr));
  } else if (span.weights.dtype == DType::bf16) {
    run(span.weights.as<bf16>());
  } else if (span.weights.dtype == DType::f16) {
    run(span.weights.as<f16>());
  } else {
    fail(ErrorCode::unsupported, "weights of dtype bf16 or f16", describe(span.weights),
         "choose another precision");
  }
}

template void adamw_update_on(simt::Queue&, const OptimizerConfig&, const AdamwSpan&, const View&,
                              int);

}  // namespace snug
