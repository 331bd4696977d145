#include <algorithm>

#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "optim/update_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A rule has its constants as members and
//   kStates             states of an element
//   Step step(...)      the numbers of one step; scalars are combined in double and rounded once
//   element(...)        one element: parameter, gradient, states

// adam_block of optim/adam_family.h.
struct AdamRule {
  static constexpr int kStates = 2;
  float one_minus_beta1, beta2, one_minus_beta2, epsilon;
  double weight_decay;
  bool decoupled;  // AdamW

  struct Step {
    float factor, rate, scale, keep, l2;
    bool first;
  };
  __device__ Step step(const StepState& s, int group) const {
    const double learning_rate = s.learning_rate[group],
                 decay = group == kGroupDecay ? weight_decay : 0.0;
    return {static_cast<float>(double{s.clip_factor} / double{s.loss_scale}),
            static_cast<float>(learning_rate / double{s.bias_correction1}),
            static_cast<float>(1.0 / ::sqrt(double{s.bias_correction2})),
            decoupled ? static_cast<float>(1.0 - learning_rate * decay) : 1.0f,
            decoupled ? 0.0f : static_cast<float>(decay),
            s.updates == 0};
  }
  __device__ float element(const Step& s, float p, float gradient, float* state) const {
    const float g = gradient * s.factor + s.l2 * p;
    p *= s.keep;
    const float m = state[0] + one_minus_beta1 * (g - state[0]);
    const float v = beta2 * state[1] + one_minus_beta2 * (g * g);
    state[0] = m;
    state[1] = v;
    return p - s.rate * (m / (sqrt(v) * s.scale + epsilon));
  }
};

// optim/sgd.cpp, without and with momentum.
struct SgdStep {
  float factor, rate, decay;
  bool first;
};
__device__ inline SgdStep sgd_step(const StepState& s, double weight_decay, int group) {
  return {static_cast<float>(double{s.clip_factor} / double{s.loss_scale}), s.learning_rate[group],
          group == kGroupDecay ? static_cast<float>(weight_decay) : 0.0f, s.updates == 0};
}

struct SgdRule {
  static constexpr int kStates = 0;
  double weight_decay;
  using Step = SgdStep;
  __device__ Step step(const StepState& s, int group) const {
    return sgd_step(s, weight_decay, group);
  }
  __device__ float element(const Step& s, float p, float gradient, float*) const {
    return p - s.rate * (gradient * s.factor + s.decay * p);
  }
};

struct MomentumRule {
  static constexpr int kStates = 1;
  double weight_decay;
  float momentum, take;  // take: 1 - dampening
  bool nesterov;
  using Step = SgdStep;
  __device__ Step step(const StepState& s, int group) const {
    return sgd_step(s, weight_decay, group);
  }
  __device__ float element(const Step& s, float p, float gradient, float* state) const {
    const float g = gradient * s.factor + s.decay * p;
    const float m = momentum * state[0] + (s.first ? 1.0f : take) * g;
    state[0] = m;
    return p - s.rate * (nesterov ? g + momentum * m : m);
  }
};

// Where a span lies, and which blocks of the launch work on it.
struct Part {
  float* master;
  const float* gradient;
  float* states[2];
  void* weights;
  int64_t elements, first_block;
  int group;
};
struct Parts {
  Part at[kSpansOfALaunch];
  int count;
};

constexpr int kVectorsPerThread = 4;

template <class Rule, class Weight, int N>
__device__ inline void update_pack(const Rule& rule, const typename Rule::Step& step,
                                   const Part& part, int64_t i) {
  constexpr int kStates = Rule::kStates;
  auto p = Pack<float, N>::load(part.master + i);
  const auto g = Pack<float, N>::load(part.gradient + i);
  Pack<float, N> states[kStates + 1] = {};
  for (int k = 0; k < kStates; ++k)
    if (!step.first) states[k] = Pack<float, N>::load(part.states[k] + i);
  Pack<Weight, N> w;
  for (int j = 0; j < N; ++j) {
    float state[kStates + 1] = {};
    for (int k = 0; k < kStates; ++k) state[k] = states[k][j];
    p[j] = rule.element(step, p[j], g[j], state);
    for (int k = 0; k < kStates; ++k) states[k][j] = state[k];
    w[j] = from_f32<Weight>(p[j]);
  }
  p.store(part.master + i);
  for (int k = 0; k < kStates; ++k) states[k].store(part.states[k] + i);
  if (part.weights) w.store(static_cast<Weight*>(part.weights) + i);
}

// A block works on one span. Each thread takes several vectors, so that the divisions in double
// weigh nothing: some devices do them at a 64th of the rate.
template <class Rule, class Weight, int N>
__global__ void update_kernel(Parts parts, const StepState* state, Rule rule) {
  if (state->found_inf) return;  // all blocks, before any barrier
  SHARED_ARRAY(typename Rule::Step, step_in_block, 1);
  int mine = 0;
  while (mine + 1 < parts.count && parts.at[mine + 1].first_block <= block()) ++mine;
  const Part part = parts.at[mine];
  if (thread() == 0) step_in_block[0] = rule.step(*state, part.group);
  sync_threads();
  const typename Rule::Step step = step_in_block[0];
  int64_t i = ((block() - part.first_block) * threads() * kVectorsPerThread + thread()) * N;
  for (int v = 0; v < kVectorsPerThread && i < part.elements; ++v, i += threads() * N) {
    if (i + N <= part.elements) {
      update_pack<Rule, Weight, N>(rule, step, part, i);
    } else {
      for (int64_t j = i; j < part.elements; ++j) update_pack<Rule, Weight, 1>(rule, step, part, j);
    }
  }
}

Part part_of(const UpdateSpan& span, int states) {
  Part p{};
  p.master = span.master.as<float>();
  p.gradient = span.gradient.as<const float>();
  for (int k = 0; k < states; ++k) p.states[k] = span.states[static_cast<size_t>(k)].as<float>();
  p.weights = span.weights.data;
  p.elements = span.master.elements();
  p.group = span.group;
  return p;
}

bool is_wide(const Part& p) {
  bool wide = true;
  for (const void* at :
       {static_cast<const void*>(p.master), static_cast<const void*>(p.gradient),
        static_cast<const void*>(p.states[0]), static_cast<const void*>(p.states[1]),
        static_cast<const void*>(p.weights)})
    wide = wide && aligned_to_vectors(at);
  return wide;
}

template <class Rule, class Weight, class Queue>
void update_spans(Queue& queue, const Rule& rule, std::span<const UpdateSpan> spans,
                  const View& state, int threads) {
  for (size_t first = 0; first < spans.size(); first += kSpansOfALaunch) {
    const size_t count = std::min<size_t>(kSpansOfALaunch, spans.size() - first);
    Parts parts{};
    bool wide = true;
    for (const UpdateSpan& span : spans.subspan(first, count)) {
      Part& p = parts.at[parts.count++];
      p = part_of(span, Rule::kStates);
      wide = wide && is_wide(p);
    }
    constexpr int kWide = 8;  // two vectors of floats, one of 16-bit weights
    int64_t blocks = 0;
    for (int i = 0; i < parts.count; ++i) {
      Part& p = parts.at[i];
      p.first_block = blocks;
      blocks += ceil_div(p.elements, int64_t{threads} * kVectorsPerThread * (wide ? kWide : 1));
    }
    launch(queue, {.blocks = blocks, .threads = threads}, "optimizer_update",
           wide ? update_kernel<Rule, Weight, kWide> : update_kernel<Rule, Weight, 1>, parts,
           static_cast<const StepState*>(step_state(state)), rule);
  }
}

}  // namespace

template <class Queue>
void optimizer_update_on(Queue& queue, const OptimizerConfig& config,
                         std::span<const UpdateSpan> spans, const View& state, int threads) {
  if (spans.empty()) return;
  const auto run = [&](const auto& rule) {
    using Rule = std::decay_t<decltype(rule)>;
    const auto first = std::find_if(spans.begin(), spans.end(),
                                    [](const UpdateSpan& s) { return s.weights.defined(); });
    const DType dtype = first == spans.end() ? DType::bf16 : first->weights.dtype;
    if (dtype == DType::bf16) {
      update_spans<Rule, bf16>(queue, rule, spans, state, threads);
    } else if (dtype == DType::f16) {
      update_spans<Rule, f16>(queue, rule, spans, state, threads);
    } else if (dtype == DType::f32) {
      update_spans<Rule, float>(queue, rule, spans, state, threads);
    } else {
      fail(ErrorCode::unsupported, "weights of dtype f32, bf16 or f16", describe(first->weights),
           "choose another precision");
    }
  };
  if (config.name == "adamw" || config.name == "adam") {
    run(AdamRule{static_cast<float>(1.0 - config.adam_beta1), static_cast<float>(config.adam_beta2),
                 static_cast<float>(1.0 - config.adam_beta2),
                 static_cast<float>(config.adam_epsilon), config.weight_decay,
                 config.name == "adamw"});
  } else if (config.name == "sgd" && config.sgd_momentum == 0) {
    run(SgdRule{config.weight_decay});
  } else if (config.name == "sgd") {
    run(MomentumRule{config.weight_decay, static_cast<float>(config.sgd_momentum),
                     static_cast<float>(1.0 - config.sgd_dampening), config.sgd_nesterov});
  } else {
    fail(ErrorCode::unsupported, "an optimizer with a kernel: adamw, adam or sgd", config.name,
         "choose one of these, or device: cpu");
  }
}

template void optimizer_update_on(simt::Queue&, const OptimizerConfig&, std::span<const UpdateSpan>,
                                  const View&, int);

}  // namespace snug
