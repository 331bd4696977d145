#include <bit>
#include <type_traits>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/random.h"
#include "engine/simt/simt.h"
#include "optim/resting.h"
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
  uint32_t key0, key1;  // of the draws, without a master
};

// Where the first span lies in every tensor, and all spans from there on.
struct Tensors {
  void* master;
  const float* gradient;
  float* states[kMaxStates];
  void* weights;       // may be null
  int64_t first;       // element of the flat range
  const float* clips;  // the first span's factor of its gradient (percentile.h); or null
};
struct Part {
  int64_t offset, elements;
  int64_t of_states;  // elements by which its states lie further on than offset
  int32_t first_block;
  int32_t rows;  // of a matrix whose state are factors, of rows and then of columns; else 0
  int16_t group;
  int16_t clip;  // of Tensors::clips
  bool wide;     // begins at 16 bytes in every tensor
};
struct Parts {
  Tensors tensors;
  Part at[kSpansOfALaunch];
  int count;
};

constexpr int kVectorsPerThread = 4;
constexpr int kWide = 8;  // two vectors of floats, one of 16-bit weights

// Parameters as floats and back: from i on, of 8 neighbours that begin a block of draws or of one.
template <class Held, int N>
__device__ inline Pack<float, N> load_parameters(const Tensors& to, int64_t i) {
  using Parameter = typename Held::ParameterType;
  const auto x = Pack<Parameter, N>::load(static_cast<const Parameter*>(to.master) + i);
  Pack<float, N> p;
  for (int j = 0; j < N; ++j) p[j] = to_f32(x[j]);
  return p;
}
template <class Held, int N>
__device__ inline void store_parameters(const Tensors& to, int64_t i, const Pack<float, N>& p,
                                        uint32_t key0, uint32_t key1) {
  using Weight = typename Held::WeightType;
  Pack<Weight, N> w;
  if constexpr (Held::kNoMaster) {
    const int64_t element = to.first + i, block = element / 8;
    const RandomWords u = random_words(static_cast<uint32_t>(block),
                                       static_cast<uint32_t>(block >> 32), 0, 0, key0, key1);
    for (int j = 0; j < N; ++j) {
      const int k = static_cast<int>((element + j) % 8);
      w[j].bits =
          bf16_at_random(std::bit_cast<uint32_t>(p[j]), u.w[k / 2] >> (k % 2 * 16) & 0xffffu);
    }
    w.store(static_cast<Weight*>(to.master) + i);
  } else {
    p.store(static_cast<float*>(to.master) + i);
    for (int j = 0; j < N; ++j) w[j] = from_f32<Weight>(p[j]);
  }
  if (to.weights) w.store(static_cast<Weight*>(to.weights) + i);
}

// The state of element i of a matrix.
__device__ inline float product_of_factors(const Tensors& to, const Part& part, int64_t i) {
  const float* const factors = to.states[0] + part.offset + part.of_states;
  const int64_t columns = part.elements / part.rows, e = i - part.offset;
  return factors[e / columns] * factors[part.rows + e % columns];
}

template <class Rule, class Held, int N>
__device__ inline void update_pack(const Rule& rule, const StepOf<Rule>& step, const Tensors& to,
                                   int64_t i, const Part& part) {
  const int64_t of_states = part.of_states;
  const bool matrix = kFactors<Rule> && part.rows > 0;
  constexpr int kStates = Rule::kStates;
  auto p = load_parameters<Held, N>(to, i);
  const auto g = Pack<float, N>::load(to.gradient + i);
  Pack<float, N> states[kStates + 1] = {};
  for (int k = 0; k < kStates; ++k)
    if (!step.first && !matrix) states[k] = Pack<float, N>::load(to.states[k] + i + of_states);
  if (matrix)
    for (int j = 0; j < N; ++j) states[0][j] = product_of_factors(to, part, i + j);
  for (int j = 0; j < N; ++j) {
    float state[kStates + 1] = {};
    for (int k = 0; k < kStates; ++k) state[k] = states[k][j];
    p[j] = rule.element(step.of_rule, p[j], g[j] * step.factor, state);
    for (int k = 0; k < kStates; ++k) states[k][j] = state[k];
  }
  store_parameters<Held, N>(to, i, p, step.key0, step.key1);
  for (int k = 0; k < kStates; ++k)
    if (!matrix) states[k].store(to.states[k] + i + of_states);
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

template <class Rule, class Held, int N>
__device__ inline void update_part(const Rule& rule, const StepOf<Rule>& step, const Tensors& to,
                                   const Part& part) {
  each_vector<N>(part, [&]<int M>(std::integral_constant<int, M>, int64_t at) {
    update_pack<Rule, Held, M>(rule, step, to, at, part);
  });
}

// A skipped step: the weights get the bits they have. In a window of a store that rests with the
// host they are only written, so without this what goes back would be whatever was there.
template <class Held, int N>
__device__ inline void round_part(const Tensors& to, const Part& part) {
  using Weight = typename Held::WeightType;
  each_vector<N>(part, [&]<int M>(std::integral_constant<int, M>, int64_t at) {
    const auto p = load_parameters<Held, M>(to, at);
    Pack<Weight, M> w;
    for (int j = 0; j < M; ++j) w[j] = from_f32<Weight>(p[j]);
    w.store(static_cast<Weight*>(to.weights) + at);
  });
}

// The last part that begins with a block or before.
__device__ inline int part_of_block(const Constant<Parts>& parts, int64_t block) {
  int mine = 0;
  for (int end = parts->count; end - mine > 1;) {
    const int middle = (mine + end) / 2;
    if (parts->at[middle].first_block <= block)
      mine = middle;
    else
      end = middle;
  }
  return mine;
}

__device__ inline ElementStep step_of_part(const StepState& state, const GroupNumbers& groups,
                                           const Tensors& to, const Part& part) {
  ElementStep numbers = element_step(state, groups, part.group);
  if (to.clips) numbers.gradient_factor *= to.clips[part.clip];
  return numbers;
}

// A block works on one part. Each thread takes several vectors, so that the divisions in double
// weigh nothing: some devices do them at a 64th of the rate.
template <class Rule, class Held>
__global__ void update_kernel(const __grid_constant__ Constant<Parts> parts, const StepState* state,
                              Rule rule, GroupNumbers groups, const double* norms) {
  if (state->found_inf && !parts->tensors.weights) return;  // all blocks, before any barrier
  const int mine = part_of_block(parts, block());
  const Part part = parts->at[mine];
  if (state->found_inf) {
    if (part.wide)
      round_part<Held, kWide>(parts->tensors, part);
    else
      round_part<Held, 1>(parts->tensors, part);
    return;
  }
  SHARED_ARRAY(StepOf<Rule>, step_in_block, 1);
  if (thread() == 0) {
    ElementStep numbers = step_of_part(*state, groups, parts->tensors, part);
    numbers.factored = part.rows > 0;
    if constexpr (kMeasures<Rule>) {
      numbers.elements = part.elements;
      numbers.parameter_norm = norms[2 * mine];
      numbers.measured_norm = norms[2 * mine + 1];
    }
    RandomWords key{};
    if constexpr (Held::kNoMaster)
      key = random_key_words(state->seed, static_cast<uint64_t>(state->step), kWeightSite);
    step_in_block[0] = {rule.step(numbers), numbers.gradient_factor, numbers.first, key.w[0],
                        key.w[1]};
  }
  sync_threads();
  const StepOf<Rule> step = step_in_block[0];
  if (part.wide)
    update_part<Rule, Held, kWide>(rule, step, parts->tensors, part);
  else
    update_part<Rule, Held, 1>(rule, step, parts->tensors, part);
}

// Of rules that measure: a block works on one chunk, its threads are the lanes of whole.h.
template <class Rule, class Held>
__global__ void measure_kernel(const __grid_constant__ Constant<Parts> parts,
                               const StepState* state, Rule rule, GroupNumbers groups,
                               double* sums) {
  if (state->found_inf) return;  // all blocks, before any barrier
  const Part part = parts->at[part_of_block(parts, block())];
  const Tensors& to = parts->tensors;
  SHARED_ARRAY(StepOf<Rule>, step_in_block, 1);
  SHARED_ARRAY(double, lanes, 2 * kNormLanes);
  if (thread() == 0) {
    ElementStep numbers = step_of_part(*state, groups, parts->tensors, part);
    numbers.factored = part.rows > 0;
    step_in_block[0] = {rule.step(numbers), numbers.gradient_factor, numbers.first, 0, 0};
  }
  sync_threads();
  const StepOf<Rule> step = step_in_block[0];
  const int64_t begin = (block() - part.first_block) * kChunkElements,
                last =
                    begin + kChunkElements < part.elements ? begin + kChunkElements : part.elements;
  double parameter = 0, measured = 0;
  for (int64_t i = begin + thread(); i < last; i += kNormLanes) {
    const int64_t at = part.offset + i;
    const float p = load_parameters<Held, 1>(to, at)[0];
    float own[Rule::kStates + 1] = {};
    for (int k = 0; k < Rule::kStates; ++k)
      if (kFactors<Rule> && part.rows > 0)
        own[k] = product_of_factors(to, part, at);
      else if (!step.first)
        own[k] = to.states[k][at + part.of_states];
    const float x = rule.measured(step.of_rule, p, to.gradient[at] * step.factor, own);
    parameter += double{p} * double{p};
    measured += double{x} * double{x};
  }
  lanes[thread()] = parameter;
  lanes[kNormLanes + thread()] = measured;
  for (int half = kNormLanes / 2; half > 0; half /= 2) {
    sync_threads();
    if (thread() < half) {
      lanes[thread()] = lanes[thread()] + lanes[thread() + half];
      lanes[kNormLanes + thread()] =
          lanes[kNormLanes + thread()] + lanes[kNormLanes + thread() + half];
    }
  }
  sync_threads();
  if (thread() == 0) {
    sums[2 * block()] = lanes[0];
    sums[2 * block() + 1] = lanes[kNormLanes];
  }
}

// A thread works on one part: its chunks in order.
__global__ void norms_kernel(const __grid_constant__ Constant<Parts> parts, const StepState* state,
                             const double* sums, double* norms) {
  if (state->found_inf) return;
  const int64_t i = block() * threads() + thread();
  if (i >= parts->count) return;
  const Part part = parts->at[i];
  const int64_t chunks = ceil_div(part.elements, kChunkElements);
  for (int j = 0; j < 2; ++j) {
    double sum = 0;
    for (int64_t c = 0; c < chunks; ++c) sum += sums[2 * (part.first_block + c) + j];
    norms[2 * i + j] = ::sqrt(sum);
  }
}

// Collects spans, and launches when they are complete or the next one does not fit.
template <class Rule, class Held, class Queue>
class Launches {
  using Weight = typename Held::WeightType;
  static constexpr int64_t kParameter = sizeof(typename Held::ParameterType);

 public:
  Launches(Queue& queue, const Rule& rule, const GroupNumbers& groups, const View& state,
           const View& norms, int threads)
      : queue_(queue),
        rule_(rule),
        groups_(groups),
        state_(step_state(state)),
        sums_(static_cast<double*>(norms.data)),
        threads_(threads) {
    parts_.count = 0;
  }

  void add(const UpdateSpan& span) {
    const int64_t n = span.master.elements();
    if (n == 0) return;
    const Tensors at = tensors_of(span);
    if (parts_.count > 0 && !lies_alike(at)) run();
    if (parts_.count == 0) parts_.tensors = at;
    const int64_t offset = bytes_between(parts_.tensors.master, at.master) / kParameter;
    const int64_t of_states = states_further(at, offset);
    if (parts_.count > 0) {
      Part& last = parts_.at[parts_.count - 1];
      if (!kMeasures<Rule> && !span.clip && last.offset + last.elements == offset &&
          last.group == span.group && last.of_states == of_states) {
        last.elements += n;
        return;
      }
      if (parts_.count == kSpansOfALaunch) {
        run();
        return add(span);
      }
    }
    parts_.at[parts_.count++] = {offset,
                                 n,
                                 of_states,
                                 0,
                                 static_cast<int32_t>(span.rows),
                                 static_cast<int16_t>(span.group),
                                 static_cast<int16_t>(span.clip - parts_.tensors.clips),
                                 is_wide(at, span.rows > 0)};
  }

  void run() {
    const double* norms = nullptr;
    if constexpr (kMeasures<Rule>) norms = measure();
    const int64_t blocks = number_blocks([&](const Part& p) {
      return int64_t{threads_} * kVectorsPerThread * (p.wide ? kWide : 1);
    });
    launch(queue_, {.blocks = blocks, .threads = threads_}, "optimizer_update",
           update_kernel<Rule, Held>, parts_, static_cast<const StepState*>(state_), rule_, groups_,
           norms);
    parts_.count = 0;
  }

 private:
  // Blocks that take so many elements of a part each.
  template <class F>
  int64_t number_blocks(F&& elements) {
    int64_t blocks = 0;
    for (int i = 0; i < parts_.count; ++i) {
      Part& p = parts_.at[i];
      p.first_block = static_cast<int32_t>(blocks);
      blocks += ceil_div(p.elements, elements(p));
    }
    return blocks;
  }
  const double* measure() {
    const int64_t chunks = number_blocks([](const Part&) { return kChunkElements; });
    double* const norms = sums_ + 2 * chunks;
    launch(queue_, {.blocks = chunks, .threads = kNormLanes}, "optimizer_measure",
           measure_kernel<Rule, Held>, parts_, static_cast<const StepState*>(state_), rule_,
           groups_, sums_);
    launch(queue_, {.blocks = ceil_div(int64_t{parts_.count}, int64_t{kWarp}), .threads = kWarp},
           "optimizer_norms", norms_kernel, parts_, static_cast<const StepState*>(state_),
           static_cast<const double*>(sums_), norms);
    return norms;
  }
  static bool is_wide(const Tensors& t, bool matrix) {
    constexpr const void* kNone[kMaxStates] = {};
    return all_wide({t.master, t.gradient, t.weights},
                    matrix ? kNone : reinterpret_cast<const void* const*>(t.states));
  }
  static Tensors tensors_of(const UpdateSpan& span) {
    Tensors t{};
    t.master = span.master.data;
    t.gradient = span.gradient.as<const float>();
    for (int k = 0; k < Rule::kStates; ++k)
      t.states[k] = span.states[static_cast<size_t>(k)].template as<float>();
    if (kFactors<Rule> && span.rows > 0) t.states[0] = span.factors;
    t.weights = span.weights.data;
    t.first = span.first;
    t.clips = span.clip;
    return t;
  }
  int64_t states_further(const Tensors& at, int64_t offset) const {
    if constexpr (Rule::kStates == 0) return 0;
    return bytes_between(parts_.tensors.states[0], at.states[0]) / int64_t{sizeof(float)} - offset;
  }
  bool lies_alike(const Tensors& at) const {
    const Tensors& base = parts_.tensors;
    const int64_t bytes = bytes_between(base.master, at.master), offset = bytes / kParameter;
    bool alike = bytes % kParameter == 0 && at.gradient == base.gradient + offset &&
                 (at.weights == nullptr) == (base.weights == nullptr) &&
                 (!Held::kNoMaster || at.first == base.first + offset) &&
                 at.clips - base.clips <= INT16_MAX;
    const int64_t further = states_further(at, offset);
    for (int k = 0; k < Rule::kStates; ++k)
      alike = alike && at.states[k] == base.states[k] + offset + further;
    if (at.weights) alike = alike && at.weights == static_cast<Weight*>(base.weights) + offset;
    return alike;
  }

  Queue& queue_;
  const Rule rule_;
  const GroupNumbers groups_;
  StepState* state_;
  double* sums_;  // of rules that measure
  int threads_;
  Parts parts_;
};

}  // namespace

template <class Queue>
void optimizer_update_on(Queue& queue, const OptimizerConfig& config, const UpdateSpans& spans,
                         DType weights, DType parameters, const View& state, int threads) {
  const GroupNumbers groups = group_numbers(config);
  const auto run = [&](const auto& rule) {
    with_held(weights, parameters, [&]<class Held>(Held) {
      Launches<std::decay_t<decltype(rule)>, Held, Queue> launches(queue, rule, groups, state,
                                                                   spans.norms, threads);
      for (size_t i = 0; i < spans.count; ++i)
        if (const UpdateSpan span = spans.at(spans.list, i); !span.resting()) launches.add(span);
      launches.run();
    });
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
                                  DType, const View&, int);

}  // namespace snug
