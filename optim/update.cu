#include <algorithm>
#include <type_traits>

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

// optim/lion.cpp.
struct LionRule {
  static constexpr int kStates = 1;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  double weight_decay;

  struct Step {
    float factor, rate, keep;
    bool first;
  };
  __device__ Step step(const StepState& s, int group) const {
    const double decay = group == kGroupDecay ? weight_decay : 0.0;
    return {static_cast<float>(double{s.clip_factor} / double{s.loss_scale}),
            s.learning_rate[group],
            static_cast<float>(1.0 - double{s.learning_rate[group]} * decay), s.updates == 0};
  }
  __device__ float element(const Step& s, float p, float gradient, float* state) const {
    const float g = gradient * s.factor;
    const float u = beta1 * state[0] + one_minus_beta1 * g;
    const float sign = (u > 0.0f ? 1.0f : 0.0f) - (u < 0.0f ? 1.0f : 0.0f);
    state[0] = beta2 * state[0] + one_minus_beta2 * g;
    return p * s.keep - s.rate * sign;
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

// Where the first span lies in every tensor, and all spans from there on.
struct Tensors {
  float* master;
  const float* gradient;
  float* states[2];
  void* weights;  // may be null
};
struct Part {
  int64_t offset, elements;
  int32_t first_block;
  int16_t group;
  bool wide;  // begins at 16 bytes in every tensor
};
struct Parts {
  Tensors tensors;
  Part at[kSpansOfALaunch];
  int count;
};

constexpr int kVectorsPerThread = 4;
constexpr int kWide = 8;  // two vectors of floats, one of 16-bit weights

template <class Rule, class Weight, int N>
__device__ inline void update_pack(const Rule& rule, const typename Rule::Step& step,
                                   const Tensors& to, int64_t i) {
  constexpr int kStates = Rule::kStates;
  auto p = Pack<float, N>::load(to.master + i);
  const auto g = Pack<float, N>::load(to.gradient + i);
  Pack<float, N> states[kStates + 1] = {};
  for (int k = 0; k < kStates; ++k)
    if (!step.first) states[k] = Pack<float, N>::load(to.states[k] + i);
  Pack<Weight, N> w;
  for (int j = 0; j < N; ++j) {
    float state[kStates + 1] = {};
    for (int k = 0; k < kStates; ++k) state[k] = states[k][j];
    p[j] = rule.element(step, p[j], g[j], state);
    for (int k = 0; k < kStates; ++k) states[k][j] = state[k];
    w[j] = from_f32<Weight>(p[j]);
  }
  p.store(to.master + i);
  for (int k = 0; k < kStates; ++k) states[k].store(to.states[k] + i);
  if (to.weights) w.store(static_cast<Weight*>(to.weights) + i);
}

// f(how many elements, the first) for the vectors of this block of a part: several a thread.
template <int N, class F>
__device__ inline void each_vector(const Part& part, F&& f) {
  int64_t i = ((block() - part.first_block) * threads() * kVectorsPerThread + thread()) * N;
  for (int v = 0; v < kVectorsPerThread && i < part.elements; ++v, i += threads() * N) {
    if (i + N <= part.elements) {
      f(std::integral_constant<int, N>{}, part.offset + i);
    } else {
      for (int64_t j = i; j < part.elements; ++j)
        f(std::integral_constant<int, 1>{}, part.offset + j);
    }
  }
}

template <class Rule, class Weight, int N>
__device__ inline void update_part(const Rule& rule, const typename Rule::Step& step,
                                   const Tensors& to, const Part& part) {
  each_vector<N>(part, [&]<int M>(std::integral_constant<int, M>, int64_t at) {
    update_pack<Rule, Weight, M>(rule, step, to, at);
  });
}

// A skipped step: the weights get the bits they have. In a window of a store that rests with the
// host they are only written, so without this what goes back would be whatever was there.
template <class Weight, int N>
__device__ inline void round_part(const Tensors& to, const Part& part) {
  each_vector<N>(part, [&]<int M>(std::integral_constant<int, M>, int64_t at) {
    const auto p = Pack<float, M>::load(to.master + at);
    Pack<Weight, M> w;
    for (int j = 0; j < M; ++j) w[j] = from_f32<Weight>(p[j]);
    w.store(static_cast<Weight*>(to.weights) + at);
  });
}

// A block works on one part. Each thread takes several vectors, so that the divisions in double
// weigh nothing: some devices do them at a 64th of the rate.
template <class Rule, class Weight>
__global__ void update_kernel(const __grid_constant__ Constant<Parts> parts, const StepState* state,
                              Rule rule) {
  if (state->found_inf && !parts->tensors.weights) return;  // all blocks, before any barrier
  int mine = 0;  // the last part that begins with this block or before
  for (int end = parts->count; end - mine > 1;) {
    const int middle = (mine + end) / 2;
    if (parts->at[middle].first_block <= block())
      mine = middle;
    else
      end = middle;
  }
  const Part part = parts->at[mine];
  if (state->found_inf) {
    if (part.wide)
      round_part<Weight, kWide>(parts->tensors, part);
    else
      round_part<Weight, 1>(parts->tensors, part);
    return;
  }
  SHARED_ARRAY(typename Rule::Step, step_in_block, 1);
  if (thread() == 0) step_in_block[0] = rule.step(*state, part.group);
  sync_threads();
  const typename Rule::Step step = step_in_block[0];
  if (part.wide)
    update_part<Rule, Weight, kWide>(rule, step, parts->tensors, part);
  else
    update_part<Rule, Weight, 1>(rule, step, parts->tensors, part);
}

// Collects spans, and launches when they are complete or the next one does not fit.
template <class Rule, class Weight, class Queue>
class Launches {
 public:
  Launches(Queue& queue, const Rule& rule, const View& state, int threads)
      : queue_(queue), rule_(rule), state_(step_state(state)), threads_(threads) {
    parts_.count = 0;
  }

  void add(const UpdateSpan& span) {
    const int64_t n = span.master.elements();
    if (n == 0) return;
    const Tensors at = tensors_of(span);
    if (parts_.count > 0 && !lies_alike(at)) run();
    if (parts_.count == 0) parts_.tensors = at;
    const int64_t offset = elements_from(parts_.tensors.master, at.master, sizeof(float));
    if (parts_.count > 0) {
      Part& last = parts_.at[parts_.count - 1];
      if (last.offset + last.elements == offset && last.group == span.group) {
        last.elements += n;
        return;
      }
      if (parts_.count == kSpansOfALaunch) {
        run();
        return add(span);
      }
    }
    parts_.at[parts_.count++] = {offset, n, 0, static_cast<int16_t>(span.group), is_wide(at)};
  }

  void run() {
    int64_t blocks = 0;
    for (int i = 0; i < parts_.count; ++i) {
      Part& p = parts_.at[i];
      p.first_block = static_cast<int32_t>(blocks);
      blocks += ceil_div(p.elements, int64_t{threads_} * kVectorsPerThread * (p.wide ? kWide : 1));
    }
    launch(queue_, {.blocks = blocks, .threads = threads_}, "optimizer_update",
           update_kernel<Rule, Weight>, parts_, static_cast<const StepState*>(state_), rule_);
    parts_.count = 0;
  }

 private:
  static Tensors tensors_of(const UpdateSpan& span) {
    Tensors t{};
    t.master = span.master.as<float>();
    t.gradient = span.gradient.as<const float>();
    for (int k = 0; k < Rule::kStates; ++k)
      t.states[k] = span.states[static_cast<size_t>(k)].template as<float>();
    t.weights = span.weights.data;
    return t;
  }
  // From one address to another, which may be of another tensor.
  static int64_t elements_from(const void* from, const void* to, int64_t size) {
    return (static_cast<int64_t>(reinterpret_cast<uintptr_t>(to)) -
            static_cast<int64_t>(reinterpret_cast<uintptr_t>(from))) /
           size;
  }
  bool lies_alike(const Tensors& at) const {
    const Tensors& base = parts_.tensors;
    const int64_t offset = elements_from(base.master, at.master, sizeof(float));
    bool alike = at.master == base.master + offset && at.gradient == base.gradient + offset &&
                 (at.weights == nullptr) == (base.weights == nullptr);
    for (int k = 0; k < Rule::kStates; ++k)
      alike = alike && at.states[k] == base.states[k] + offset;
    if (at.weights) alike = alike && at.weights == static_cast<Weight*>(base.weights) + offset;
    return alike;
  }
  static bool is_wide(const Tensors& t) {
    bool wide = true;
    for (const void* at :
         {static_cast<const void*>(t.master), static_cast<const void*>(t.gradient),
          static_cast<const void*>(t.states[0]), static_cast<const void*>(t.states[1]),
          static_cast<const void*>(t.weights)})
      wide = wide && aligned_to_vectors(at);
    return wide;
  }

  Queue& queue_;
  const Rule rule_;
  StepState* state_;
  int threads_;
  Parts parts_;
};

template <class Rule, class Weight, class Queue>
void update_spans(Queue& queue, const Rule& rule, const UpdateSpans& spans, const View& state,
                  int threads) {
  Launches<Rule, Weight, Queue> launches(queue, rule, state, threads);
  for (size_t i = 0; i < spans.count; ++i) launches.add(spans.at(spans.list, i));
  launches.run();
}

}  // namespace

template <class Queue>
void optimizer_update_on(Queue& queue, const OptimizerConfig& config, const UpdateSpans& spans,
                         DType weights, const View& state, int threads) {
  const auto run = [&](const auto& rule) {
    using Rule = std::decay_t<decltype(rule)>;
    if (weights == DType::bf16) {
      update_spans<Rule, bf16>(queue, rule, spans, state, threads);
    } else if (weights == DType::f16) {
      update_spans<Rule, f16>(queue, rule, spans, state, threads);
    } else if (weights == DType::f32) {
      update_spans<Rule, float>(queue, rule, spans, state, threads);
    } else {
      fail(ErrorCode::unsupported, "weights of dtype f32, bf16 or f16", to_string(weights),
           "choose another precision");
    }
  };
  if (config.name == "adamw" || config.name == "adam") {
    run(AdamRule{static_cast<float>(1.0 - config.adam_beta1), static_cast<float>(config.adam_beta2),
                 static_cast<float>(1.0 - config.adam_beta2),
                 static_cast<float>(config.adam_epsilon), config.weight_decay,
                 config.name == "adamw"});
  } else if (config.name == "lion") {
    run(LionRule{static_cast<float>(config.adam_beta1), static_cast<float>(1.0 - config.adam_beta1),
                 static_cast<float>(config.adam_beta2), static_cast<float>(1.0 - config.adam_beta2),
                 config.weight_decay});
  } else if (config.name == "sgd" && config.sgd_momentum == 0) {
    run(SgdRule{config.weight_decay});
  } else if (config.name == "sgd") {
    run(MomentumRule{config.weight_decay, static_cast<float>(config.sgd_momentum),
                     static_cast<float>(1.0 - config.sgd_dampening), config.sgd_nesterov});
  } else {
    fail(ErrorCode::unsupported, "an optimizer with a kernel: adamw, adam, lion or sgd",
         config.name, "choose one of these, or device: cpu");
  }
}

template void optimizer_update_on(simt::Queue&, const OptimizerConfig&, const UpdateSpans&, DType,
                                  const View&, int);

}  // namespace snug
