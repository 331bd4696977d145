#include <algorithm>
#include <type_traits>

#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/map.h"
#include "optim/rules.h"
#include "optim/update_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// The numbers of a step for every element: the gradient's factor, and those of the rule.
template <class Rule>
struct StepOf {
  typename Rule::Step of_rule;
  float factor;
  bool first;
};

// Where the first span lies in every tensor, and all spans from there on.
struct Tensors {
  float* master;
  const float* gradient;
  float* states[kMaxStates];
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
__device__ inline void update_pack(const Rule& rule, const StepOf<Rule>& step, const Tensors& to,
                                   int64_t i) {
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
    p[j] = rule.element(step.of_rule, p[j], g[j] * step.factor, state);
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
__device__ inline void update_part(const Rule& rule, const StepOf<Rule>& step, const Tensors& to,
                                   const Part& part) {
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
                              Rule rule, GroupNumbers groups) {
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
  SHARED_ARRAY(StepOf<Rule>, step_in_block, 1);
  if (thread() == 0) {
    const ElementStep numbers = element_step(*state, groups, part.group);
    step_in_block[0] = {rule.step(numbers), numbers.gradient_factor, numbers.first};
  }
  sync_threads();
  const StepOf<Rule> step = step_in_block[0];
  if (part.wide)
    update_part<Rule, Weight, kWide>(rule, step, parts->tensors, part);
  else
    update_part<Rule, Weight, 1>(rule, step, parts->tensors, part);
}

// Collects spans, and launches when they are complete or the next one does not fit.
template <class Rule, class Weight, class Queue>
class Launches {
 public:
  Launches(Queue& queue, const Rule& rule, const GroupNumbers& groups, const View& state,
           int threads)
      : queue_(queue), rule_(rule), groups_(groups), state_(step_state(state)), threads_(threads) {
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
           update_kernel<Rule, Weight>, parts_, static_cast<const StepState*>(state_), rule_,
           groups_);
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
    for (const void* at : {static_cast<const void*>(t.master), static_cast<const void*>(t.gradient),
                           static_cast<const void*>(t.weights)})
      wide = wide && aligned_to_vectors(at);
    for (const float* at : t.states) wide = wide && aligned_to_vectors(at);
    return wide;
  }

  Queue& queue_;
  const Rule rule_;
  const GroupNumbers groups_;
  StepState* state_;
  int threads_;
  Parts parts_;
};

template <class Rule, class Weight, class Queue>
void update_spans(Queue& queue, const Rule& rule, const GroupNumbers& groups,
                  const UpdateSpans& spans, const View& state, int threads) {
  Launches<Rule, Weight, Queue> launches(queue, rule, groups, state, threads);
  for (size_t i = 0; i < spans.count; ++i) launches.add(spans.at(spans.list, i));
  launches.run();
}

}  // namespace

template <class Queue>
void optimizer_update_on(Queue& queue, const OptimizerConfig& config, const UpdateSpans& spans,
                         DType weights, const View& state, int threads) {
  const GroupNumbers groups = group_numbers(config);
  const auto run = [&](const auto& rule) {
    using Rule = std::decay_t<decltype(rule)>;
    if (weights == DType::bf16) {
      update_spans<Rule, bf16>(queue, rule, groups, spans, state, threads);
    } else if (weights == DType::f16) {
      update_spans<Rule, f16>(queue, rule, groups, spans, state, threads);
    } else if (weights == DType::f32) {
      update_spans<Rule, float>(queue, rule, groups, spans, state, threads);
    } else {
      fail(ErrorCode::unsupported, "weights of dtype f32, bf16 or f16", to_string(weights),
           "choose another precision");
    }
  };
  bool known = false;
  for_each_rule([&]<class Entry>(Entry) {
    if (config.name != Entry::kName) return;
    known = true;
    Entry::with_rule(config, run);
  });
  if (!known)
    fail(ErrorCode::unsupported, "an optimizer with a rule of optim/rules", config.name,
         "choose one of these, or device: cpu");
}

template void optimizer_update_on(simt::Queue&, const OptimizerConfig&, const UpdateSpans&, DType,
                                  const View&, int);

}  // namespace snug
