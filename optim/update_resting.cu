#include <bit>
#include <type_traits>

#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"
#include "engine/simt/random.h"
#include "engine/simt/simt.h"
#include "optim/kahan.h"
#include "optim/resting.h"
#include "optim/rules.h"
#include "optim/update_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

constexpr int kEach = 8;               // elements of a lane
constexpr int kGroup = kWarp * kEach;  // of a warp: whole blocks of codes
constexpr int kGroupsOfAWarp = 4;

// Where the first span lies in every tensor, and all spans from there on.
struct RestTensors {
  void* master;
  const float* gradient;
  void* weights;       // may be null
  const float* clips;  // the first span's factor of its gradient (percentile.h); or null
  void* values[kMaxStates];
  float* scales[kMaxStates];
};
struct RestPart {
  int64_t offset, elements;
  int64_t values, scales;  // bytes and floats, of every state
  int64_t first;           // of the flat range
  int32_t first_block;
  int16_t clip;  // of RestTensors::clips
  int8_t group;
  bool wide;  // begins at 16 bytes in every tensor
};
static_assert(sizeof(RestPart) == 48);
struct RestParts {
  RestTensors tensors;
  RestPart at[kRestingSpansOfALaunch];
  int count;
};

// How the states rest: bits 16 are bf16.
struct Rest {
  int bits = 16;
  int64_t block = kGroup;
  ScaleRule rule = ScaleRule::absmax;
  float peak = 1;
  bool squares[kMaxStates]{};  // which of the two books
  bool sums = false;           // the state behind the rule's is a compensation (kahan.h)
};

// Of rules whose states leave one free, and have no factors.
template <class Rule, class Held>
inline constexpr bool kMayCompensate =
    Held::kNoMaster&& Rule::kStates < kMaxStates && !kFactors<Rule>;

template <class Rule>
struct RestStep {
  typename Rule::Step of_rule;
  float factor;
  bool first;
};

__device__ inline uint32_t largest_of(uint32_t v, int lanes, SIMT_WHERE) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const uint32_t other = shuffle_xor(v, distance, kAllLanes, where.part(distance));
    if (distance < lanes && other > v) v = other;
  }
  return v;
}

template <class T>
__device__ inline void take(T (&to)[kEach], const T* from, int count, bool wide) {
  if (wide && count == kEach) {
    const auto pack = Pack<T, kEach>::load(from);
    for (int j = 0; j < kEach; ++j) to[j] = pack[j];
    return;
  }
  for (int j = 0; j < count; ++j) to[j] = from[j];
}
template <class T>
__device__ inline void give(T* to, const T (&from)[kEach], int count, bool wide) {
  if (wide && count == kEach) {
    Pack<T, kEach> pack;
    for (int j = 0; j < kEach; ++j) pack[j] = from[j];
    pack.store(to);
    return;
  }
  for (int j = 0; j < count; ++j) to[j] = from[j];
}

// What the threads of a block share of books and keys: of the signed codec and that of squares.
struct Tables {
  Shared<int32_t> bounds;
  Shared<float> values;
  Shared<uint32_t> keys;
};
__device__ inline int nearest_code(const Tables& t, int book, int32_t key) {
  int entry = 0;
  for (int step = kMaxCodes / 2; step > 0; step /= 2)
    if (key > t.bounds[book + entry + step - 1]) entry += step;
  return entry;
}

// Elements i to i + count of a part, of state k.
__device__ inline void load_state(float (&s)[kEach], const Rest& how, const Tables& t, int k,
                                  const void* values, const float* scales, int64_t i, int count,
                                  bool wide) {
  if (how.bits == 16) {
    bf16 x[kEach] = {};
    take(x, static_cast<const bf16*>(values) + i, count, wide);
    for (int j = 0; j < count; ++j) s[j] = to_f32(x[j]);
    return;
  }
  if (count == 0) return;
  const int book = how.squares[k] ? kMaxCodes : 0;
  const float scale = scales[i / how.block];
  const auto* codes = static_cast<const uint8_t*>(values);
  if (how.bits == 8) {
    uint8_t x[kEach] = {};
    take(x, codes + i, count, wide);
    for (int j = 0; j < count; ++j) s[j] = t.values[book + x[j]] * scale;
    return;
  }
  for (int j = 0; j < count; ++j) {
    const int byte = codes[(i + j) / 2];
    s[j] = t.values[book + (j % 2 == 0 ? byte >> 4 : byte & 15)] * scale;
  }
}

// Of 8 neighbours from `element` of the flat range on, by the draws of key k.
__device__ inline void round_at_random(bf16 (&x)[kEach], const float (&s)[kEach], int count,
                                       int64_t element, const Tables& t, int k) {
  const int64_t block = element / kEach;
  const RandomWords u =
      random_words(static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0,
                   t.keys[2 * k], t.keys[2 * k + 1]);
  for (int j = 0; j < count; ++j)
    x[j].bits = bf16_at_random(std::bit_cast<uint32_t>(s[j]), u.w[j / 2] >> (j % 2 * 16) & 0xffffu);
}

__device__ inline void store_state(const float (&s)[kEach], const Rest& how, const Tables& t, int k,
                                   void* values, float* scales, int64_t i, int count, bool wide,
                                   int64_t element, const CodeBook& book, SIMT_WHERE) {
  if (how.bits == 16) {
    bf16 x[kEach] = {};
    round_at_random(x, s, count, element, t, k);
    give(static_cast<bf16*>(values) + i, x, count, wide);
    return;
  }
  BlockExtremes e;
  for (int j = 0; j < count; ++j) e.add(s[j]);
  const int lanes = static_cast<int>(how.block) / kEach;
  e.largest = largest_of(e.largest, lanes, where);
  if (count == 0) return;
  const BlockScale scale = scale_of(how.rule, how.peak, e);
  if (lane() % lanes == 0) scales[i / how.block] = scale.scale;
  uint8_t x[kEach] = {};
  for (int j = 0; j < count; ++j) {
    const float v = scaled(how.rule, scale, s[j]);
    x[j] =
        v != v
            ? book.nan
            : static_cast<uint8_t>(nearest_code(t, how.squares[k] ? kMaxCodes : 0, float_key(v)));
  }
  auto* codes = static_cast<uint8_t*>(values);
  if (how.bits == 8) {
    give(codes + i, x, count, wide);
    return;
  }
  for (int j = 0; j < count; j += 2)
    codes[(i + j) / 2] = static_cast<uint8_t>(x[j] << 4 | (j + 1 < count ? x[j + 1] : book.zero));
}

// The last part that begins with a block or before.
__device__ inline int part_of_block(const Constant<RestParts>& parts, int64_t block) {
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
                                           const RestTensors& to, const RestPart& part) {
  ElementStep numbers = element_step(state, groups, part.group);
  if (to.clips) numbers.gradient_factor *= to.clips[part.clip];
  return numbers;
}

// Of rules that measure: a warp works on one chunk, a lane on eight lanes of whole.h.
template <class Rule, class Held>
__global__ void resting_measure_kernel(const __grid_constant__ Constant<RestParts> parts,
                                       const StepState* state, Rule rule, GroupNumbers groups,
                                       Rest how,
                                       const __grid_constant__ Constant<CodeBook> signed_book,
                                       const __grid_constant__ Constant<CodeBook> squares_book,
                                       double* sums) {
  using Parameter = typename Held::ParameterType;
  constexpr int kStates = Rule::kStates;
  if (state->found_inf) return;  // all blocks, before any barrier
  const RestPart part = parts->at[part_of_block(parts, block())];
  const RestTensors& to = parts->tensors;
  SHARED_ARRAY(RestStep<Rule>, step_in_block, 1);
  SHARED_ARRAY(int32_t, bounds, 1);
  SHARED_ARRAY(float, entries, 2 * kMaxCodes);
  SHARED_ARRAY(uint32_t, keys, 1);
  if (thread() == 0) {
    const ElementStep numbers = step_of_part(*state, groups, to, part);
    step_in_block[0] = {rule.step(numbers), numbers.gradient_factor, numbers.first};
  }
  if (how.bits < 16)
    for (int c = thread(); c < kMaxCodes; c += threads()) {
      entries[c] = signed_book->values[c];
      entries[kMaxCodes + c] = squares_book->values[c];
    }
  sync_threads();
  const RestStep<Rule> step = step_in_block[0];
  const Tables tables{bounds, entries, keys};
  double parameter[kEach] = {}, measured[kEach] = {};
  const int64_t begin = (block() - part.first_block) * kChunkElements;
  for (int64_t g0 = begin; g0 < begin + kChunkElements && g0 < part.elements; g0 += kGroup) {
    const int64_t i = g0 + lane() * kEach, left = part.elements - i;
    const int count = left < 0 ? 0 : (left < kEach ? static_cast<int>(left) : kEach);
    Parameter p[kEach] = {};
    float g[kEach] = {}, s[kStates + 1][kEach] = {};
    take(p, static_cast<const Parameter*>(to.master) + part.offset + i, count, part.wide);
    take(g, to.gradient + part.offset + i, count, part.wide);
    if (!step.first)
      for (int k = 0; k < kStates; ++k)
        load_state(s[k], how, tables, k, static_cast<uint8_t*>(to.values[k]) + part.values,
                   to.scales[k] + part.scales, i, count, part.wide);
    float rest[kEach] = {};
    if constexpr (kMayCompensate<Rule, Held>)
      if (how.sums && !step.first)
        load_state(rest, how, tables, kStates,
                   static_cast<uint8_t*>(to.values[kStates]) + part.values, to.scales[kStates], i,
                   count, part.wide);
    for (int j = 0; j < count; ++j) {
      float own[kStates + 1] = {};
      for (int k = 0; k < kStates; ++k) own[k] = s[k][j];
      const float value = to_f32(p[j]) + rest[j];
      const float x = rule.measured(step.of_rule, value, g[j] * step.factor, own);
      parameter[j] += double{value} * double{value};
      measured[j] += double{x} * double{x};
    }
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    for (int j = 0; j < kEach; ++j) {
      parameter[j] += shuffle_xor(parameter[j], distance);
      measured[j] += shuffle_xor(measured[j], distance);
    }
  for (int half = kEach / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) {
      parameter[j] += parameter[j + half];
      measured[j] += measured[j + half];
    }
  if (lane() == 0) {
    sums[2 * block()] = parameter[0];
    sums[2 * block() + 1] = measured[0];
  }
}

__global__ void resting_norms_kernel(const __grid_constant__ Constant<RestParts> parts,
                                     const StepState* state, const double* sums, double* norms) {
  if (state->found_inf) return;
  const int64_t i = block() * threads() + thread();
  if (i >= parts->count) return;
  const RestPart part = parts->at[i];
  const int64_t chunks = ceil_div(part.elements, kChunkElements);
  for (int j = 0; j < 2; ++j) {
    double sum = 0;
    for (int64_t c = 0; c < chunks; ++c) sum += sums[2 * (part.first_block + c) + j];
    norms[2 * i + j] = ::sqrt(sum);
  }
}

// A block works on one part, a warp on groups of it.
template <class Rule, class Held>
__global__ void resting_kernel(const __grid_constant__ Constant<RestParts> parts,
                               const StepState* state, Rule rule, GroupNumbers groups, Rest how,
                               const __grid_constant__ Constant<CodeBook> signed_book,
                               const __grid_constant__ Constant<CodeBook> squares_book,
                               const double* norms) {
  using Weight = typename Held::WeightType;
  using Parameter = typename Held::ParameterType;
  constexpr int kStates = Rule::kStates;
  const bool skipped = state->found_inf != 0;
  if (skipped && !parts->tensors.weights) return;  // all blocks, before any barrier
  const int mine = part_of_block(parts, block());
  const RestPart part = parts->at[mine];
  const RestTensors& to = parts->tensors;
  SHARED_ARRAY(RestStep<Rule>, step_in_block, 1);
  SHARED_ARRAY(int32_t, bounds, 2 * kMaxCodes);
  SHARED_ARRAY(float, entries, 2 * kMaxCodes);
  SHARED_ARRAY(uint32_t, keys, 2 * kMaxStates + 2);  // of the states, then of parameters
  if (thread() == 0) {
    ElementStep numbers = step_of_part(*state, groups, to, part);
    if constexpr (kMeasures<Rule>) {
      numbers.elements = part.elements;
      numbers.parameter_norm = norms[2 * mine];
      numbers.measured_norm = norms[2 * mine + 1];
    }
    step_in_block[0] = {rule.step(numbers), numbers.gradient_factor, numbers.first};
    for (int k = 0; k <= kMaxStates; ++k) {
      if (k == kMaxStates ? !Held::kNoMaster : k >= kStates) continue;
      const RandomWords key = random_key_words(state->seed, static_cast<uint64_t>(state->step),
                                               k == kMaxStates ? kWeightSite : state_site(k));
      keys[2 * k] = key.w[0];
      keys[2 * k + 1] = key.w[1];
    }
  }
  if (how.bits < 16)
    for (int c = thread(); c < kMaxCodes; c += threads()) {
      bounds[c] = signed_book->bounds[c];
      bounds[kMaxCodes + c] = squares_book->bounds[c];
      entries[c] = signed_book->values[c];
      entries[kMaxCodes + c] = squares_book->values[c];
    }
  sync_threads();
  const RestStep<Rule> step = step_in_block[0];
  const Tables tables{bounds, entries, keys};
  const int64_t first_group = (block() - part.first_block) * warps() * kGroupsOfAWarp + warp();
  for (int v = 0; v < kGroupsOfAWarp; ++v) {
    const int64_t begin = (first_group + v * warps()) * kGroup;
    if (begin >= part.elements) break;
    const int64_t i = begin + lane() * kEach, left = part.elements - i;
    const int count = left < 0 ? 0 : (left < kEach ? static_cast<int>(left) : kEach);
    float p[kEach] = {}, g[kEach] = {};
    Parameter* const master = static_cast<Parameter*>(to.master) + part.offset;
    Parameter rested[kEach] = {};
    take(rested, static_cast<const Parameter*>(master + i), count, part.wide);
    for (int j = 0; j < count; ++j) p[j] = to_f32(rested[j]);
    if (!skipped) {
      take(g, to.gradient + part.offset + i, count, part.wide);
      float s[kStates + 1][kEach] = {};
      const auto values = [&](int k) { return static_cast<uint8_t*>(to.values[k]) + part.values; };
      if (!step.first)
        for (int k = 0; k < kStates; ++k)
          load_state(s[k], how, tables, k, values(k), to.scales[k] + part.scales, i, count,
                     part.wide);
      if constexpr (kMayCompensate<Rule, Held>)
        if (how.sums && !step.first) {
          load_state(s[kStates], how, tables, kStates, values(kStates), to.scales[kStates], i,
                     count, part.wide);
          for (int j = 0; j < count; ++j) p[j] = p[j] + s[kStates][j];
        }
      for (int j = 0; j < count; ++j) {
        float own[kStates + 1] = {};
        for (int k = 0; k < kStates; ++k) own[k] = s[k][j];
        p[j] = rule.element(step.of_rule, p[j], g[j] * step.factor, own);
        for (int k = 0; k < kStates; ++k) s[k][j] = own[k];
      }
      if constexpr (Held::kNoMaster) {
        bool done = false;
        if constexpr (kMayCompensate<Rule, Held>) done = how.sums;
        if (done) {
          bf16 compensation[kEach] = {};
          for (int j = 0; j < count; ++j) {
            rested[j] = from_f32<bf16>(p[j]);
            compensation[j] = from_f32<bf16>(p[j] - to_f32(rested[j]));
          }
          give(static_cast<bf16*>(static_cast<void*>(values(kStates))) + i, compensation, count,
               part.wide);
        } else {
          round_at_random(rested, p, count, part.first + i, tables, kMaxStates);
        }
        for (int j = 0; j < count; ++j) p[j] = to_f32(rested[j]);
        give(master + i, rested, count, part.wide);
      } else {
        give(master + i, p, count, part.wide);
      }
      for (int k = 0; k < kStates; ++k)
        store_state(s[k], how, tables, k, values(k), to.scales[k] + part.scales, i, count,
                    part.wide, part.first + i,
                    how.squares[k] ? *squares_book.operator->() : *signed_book.operator->());
    }
    if (to.weights) {
      Weight w[kEach] = {};
      for (int j = 0; j < count; ++j) w[j] = from_f32<Weight>(p[j]);
      give(static_cast<Weight*>(to.weights) + part.offset + i, w, count, part.wide);
    }
  }
}

// Collects spans, and launches when they are complete or the next one does not fit.
template <class Rule, class Held, class Queue>
class RestLaunches {
  static constexpr int64_t kParameter = sizeof(typename Held::ParameterType);

 public:
  RestLaunches(Queue& queue, const Rule& rule, const OptimizerConfig& config, const Rest& how,
               const CodeBook& signed_book, const CodeBook& squares_book, const View& state,
               const View& norms, int threads)
      : queue_(queue),
        rule_(rule),
        groups_(group_numbers(config)),
        how_(how),
        signed_(signed_book),
        squares_(squares_book),
        state_(step_state(state)),
        sums_(static_cast<double*>(norms.data)),
        threads_(threads) {
    parts_.count = 0;
  }

  void add(const UpdateSpan& span) {
    const int64_t n = span.master.elements();
    if (n == 0) return;
    const RestTensors at = tensors_of(span);
    if (parts_.count > 0 && (!lies_alike(at) || parts_.count == kRestingSpansOfALaunch)) run();
    if (parts_.count == 0) parts_.tensors = at;
    const RestTensors& base = parts_.tensors;
    parts_.at[parts_.count++] = {
        bytes_between(base.master, at.master) / kParameter,
        n,
        bytes_between(base.values[0], at.values[0]),
        bytes_between(base.scales[0], at.scales[0]) / int64_t{sizeof(float)},
        span.first,
        0,
        static_cast<int16_t>(span.clip - base.clips),
        static_cast<int8_t>(span.group),
        all_wide({at.master, at.gradient, at.weights}, at.values)};
  }

  void run() {
    const double* norms = nullptr;
    if constexpr (kMeasures<Rule>) norms = measure();
    const int64_t blocks = number_blocks(int64_t{threads_} / kWarp * kGroupsOfAWarp * kGroup);
    launch(queue_, {.blocks = blocks, .threads = threads_}, "optimizer_update",
           resting_kernel<Rule, Held>, parts_, static_cast<const StepState*>(state_), rule_,
           groups_, how_, signed_, squares_, norms);
    parts_.count = 0;
  }

 private:
  // Blocks that take so many elements of a part each.
  int64_t number_blocks(int64_t elements) {
    int64_t blocks = 0;
    for (int i = 0; i < parts_.count; ++i) {
      RestPart& p = parts_.at[i];
      p.first_block = static_cast<int32_t>(blocks);
      blocks += ceil_div(p.elements, elements);
    }
    return blocks;
  }
  const double* measure() {
    const int64_t chunks = number_blocks(kChunkElements);
    double* const norms = sums_ + 2 * chunks;
    launch(queue_, {.blocks = chunks, .threads = kWarp}, "optimizer_measure",
           resting_measure_kernel<Rule, Held>, parts_, static_cast<const StepState*>(state_), rule_,
           groups_, how_, signed_, squares_, sums_);
    launch(queue_, {.blocks = ceil_div(int64_t{parts_.count}, int64_t{kWarp}), .threads = kWarp},
           "optimizer_norms", resting_norms_kernel, parts_, static_cast<const StepState*>(state_),
           static_cast<const double*>(sums_), norms);
    return norms;
  }
  // With the compensation.
  int states() const { return Rule::kStates + (how_.sums ? 1 : 0); }
  RestTensors tensors_of(const UpdateSpan& span) const {
    RestTensors t{};
    t.master = span.master.data;
    t.gradient = span.gradient.as<const float>();
    t.weights = span.weights.data;
    t.clips = span.clip;
    for (int k = 0; k < states(); ++k) {
      t.values[k] = span.states[static_cast<size_t>(k)].data;
      t.scales[k] = static_cast<float*>(span.scales[static_cast<size_t>(k)].data);
    }
    return t;
  }
  bool lies_alike(const RestTensors& at) const {
    const RestTensors& base = parts_.tensors;
    const int64_t bytes = bytes_between(base.master, at.master), offset = bytes / kParameter;
    bool alike = bytes % kParameter == 0 && at.gradient == base.gradient + offset &&
                 (at.weights == nullptr) == (base.weights == nullptr) &&
                 at.clips - base.clips <= INT16_MAX;
    if (at.weights)
      alike = alike && bytes_between(base.weights, at.weights) ==
                           offset * int64_t{sizeof(typename Held::WeightType)};
    for (int k = 0; k < states(); ++k)
      alike = alike &&
              bytes_between(base.values[k], at.values[k]) ==
                  bytes_between(base.values[0], at.values[0]) &&
              bytes_between(base.scales[k], at.scales[k]) ==
                  bytes_between(base.scales[0], at.scales[0]);
    return alike;
  }

  Queue& queue_;
  const Rule rule_;
  const GroupNumbers groups_;
  const Rest how_;
  const CodeBook& signed_;
  const CodeBook& squares_;
  StepState* state_;
  double* sums_;  // of rules that measure
  int threads_;
  RestParts parts_;
};

}  // namespace

template <class Queue>
void resting_update_on(Queue& queue, const OptimizerConfig& config,
                       const std::array<const Codec*, kMaxStates>& codecs, const UpdateSpans& spans,
                       DType weights, DType parameters, const View& state, int threads) {
  const StateForm form = config.state;
  Rest how;
  how.sums = compensates(config);
  static const CodeBook none{};
  const CodeBook *signed_book = &none, *squares_book = &none;
  if (form != StateForm::bf16) {
    const Codec& one = *codec_of_state(form, false);
    const Codec& two = *codec_of_state(form, true);
    require(one.bits == two.bits && one.block == two.block && one.rule == two.rule &&
                one.peak == two.peak && kGroup % one.block == 0,
            "codecs of one shape for all states");
    how.bits = one.bits;
    how.block = one.block;
    how.rule = one.rule;
    how.peak = one.peak;
    for (size_t k = 0; k < kMaxStates; ++k) how.squares[k] = codecs[k] == &two;
    signed_book = one.book;
    squares_book = two.book;
  }
  bool known = false;
  for_each_rule([&]<class Entry>(Entry) {
    if (config.name != Entry::kName) return;
    known = true;
    Entry::with_rule(config, [&](const auto& rule) {
      with_held(weights, parameters, [&]<class Held>(Held) {
        RestLaunches<std::decay_t<decltype(rule)>, Held, Queue> launches(
            queue, rule, config, how, *signed_book, *squares_book, state, spans.norms, threads);
        for (size_t i = 0; i < spans.count; ++i)
          if (const UpdateSpan span = spans.at(spans.list, i); span.resting()) launches.add(span);
        launches.run();
      });
    });
  });
  if (!known)
    fail(ErrorCode::unsupported, "an optimizer with a rule of optim/rules", config.name,
         "choose one of these, or device: cpu");
}

template void resting_update_on(simt::Queue&, const OptimizerConfig&,
                                const std::array<const Codec*, kMaxStates>&, const UpdateSpans&,
                                DType, DType, const View&, int);

}  // namespace snug
