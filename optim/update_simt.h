// The updates of optim/optimizer.h for engine/simt: the rules of optim/rules, which the CPU's loops
// have too, so the same bits, over all spans of a state store.
//
// Parameters rest in f32, or in bf16 without a master, which are the weights: those are rounded at
// random, with the draws of optim/resting.h.
//
// Every number of the step is read from the StepState on the queue's side: gradients are unscaled
// and clipped on the way, if found_inf is set nothing is written but the weights, rounded anew, and
// the states count as zero when no update was applied before.
//
// Rules that measure (whole.h) take two launches more before: of the sums of all chunks, and of the
// norms.
//
// Launches  one for all spans, as far as the tensors lie alike: a span's place in each of them is
//           that of the first span and the same number of elements on. Where that changes another
//           one begins, and after kSpansOfALaunch spans; neighbours of one group without a gap
//           count as one. No memory is taken: the table of spans is an argument of the kernel.
// Queue     simt::Queue of the side that is linked. Shapes and the config have been checked, and
//           loss_scale is above 0. threads: of a block.
// Traffic   12 bytes an element and 8 a state; 2 more with 16-bit weights, 4 less without a master.
#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>

#include "engine/core/error.h"
#include "optim/elementwise.h"

namespace snug {

// n elements each. f32, but weights: bf16 or f16, or undefined; and a master in bf16, whose copies
// the weights are. The same in all spans of a call.
struct UpdateSpan {
  View master, gradient, weights;
  std::array<View, kMaxStates> states = {};  // those of the optimizer, in its order
  int group = 0;                             // number_of_group() of optim/rule.h
  std::array<View, kMaxStates> scales = {};  // of states in codes; else undefined
  int64_t first = 0;                         // element of the flat range, which draws are of
  // Of a matrix with a factored state (factored.h), which is then not looked at; else 0.
  int64_t rows = 0;
  float* factors = nullptr;
  const float* clip = nullptr;  // what its gradient is multiplied by too (percentile.h)

  // Whether states rest otherwise than in f32.
  bool resting() const {
    return scales[0].defined() || (states[0].defined() && states[0].dtype != DType::f32);
  }
};

inline constexpr int kSpansOfALaunch = 768;

// Whether all tensors may be accessed 16 bytes at a time.
inline bool all_wide(std::initializer_list<const void*> tensors, const void* const* states) {
  const auto wide = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  return std::all_of(tensors.begin(), tensors.end(), wide) &&
         std::all_of(states, states + kMaxStates, wide);
}
// Bytes from one address to another, which may be of another tensor.
inline int64_t bytes_between(const void* from, const void* to) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to)) -
         static_cast<int64_t>(reinterpret_cast<uintptr_t>(from));
}

// A list of spans that need not exist at once: `at` is called once for each, in order.
struct UpdateSpans {
  size_t count;
  UpdateSpan (*at)(const void* list, size_t i);
  const void* list;
  // Of rules that measure (whole.h): room for two numbers of every chunk and of every span, f64.
  View norms = {};
};

// What parameters of a call rest in: a kernel's Held, beside the Weight that they are rounded to.
template <class Weight, class Parameter = float>
struct Held {
  using WeightType = Weight;
  using ParameterType = Parameter;
  static constexpr bool kNoMaster = sizeof(Parameter) < sizeof(float);
};
// f(Held) for the dtypes of a call; throws unsupported on others.
template <class F>
void with_held(DType weights, DType parameters, F&& f) {
  if (parameters == DType::bf16 && (weights == DType::f32 || weights == DType::bf16)) {
    f(Held<bf16, bf16>());
  } else if (parameters == DType::f32 && weights == DType::bf16) {
    f(Held<bf16>());
  } else if (parameters == DType::f32 && weights == DType::f16) {
    f(Held<f16>());
  } else if (parameters == DType::f32 && weights == DType::f32) {
    f(Held<float>());
  } else {
    fail(ErrorCode::unsupported, "weights of dtype f32, bf16 or f16", to_string(weights),
         "choose another precision");
  }
}

// Of the spans that rest in f32. weights: their dtype, if any span has some.
template <class Queue>
void optimizer_update_on(Queue& queue, const OptimizerConfig& config, const UpdateSpans& spans,
                         DType weights, DType parameters, const View& state, int threads = 256);

// Of the others: a warp decodes 256 elements at a time, runs the rule and encodes them, with the
// bits of optim/resting.h. A launch takes kRestingSpansOfALaunch spans.
inline constexpr int kRestingSpansOfALaunch = 448;
template <class Queue>
void resting_update_on(Queue& queue, const OptimizerConfig& config,
                       const std::array<const Codec*, kMaxStates>& codecs, const UpdateSpans& spans,
                       DType weights, DType parameters, const View& state, int threads = 256);

}  // namespace snug
