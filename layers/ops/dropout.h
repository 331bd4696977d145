// Dropout. Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov, JMLR 15 (2014), with kept
// values scaled up in training, so that evaluation does nothing.
//
// Math      keep[n][c] = uniform(seed, step, site, sample, position, c) >= p
//           y = keep ? x / (1 - p) : 0;   dx = keep ? dy / (1 - p) : 0
//           Row n is sample state->first_sample + n / T at position n % T. The mask is not stored:
//           it is a pure function of those numbers (engine/core/rng.h), so backward, recompute and
//           any split of the batch into micro-batches see the same one.
// Shapes    y, x, dy, dx (N,C) with N = B*T; state: the StepState (seed, step, first_sample).
// dtypes    one of f32, bf16, f16, the same for all tensors.
// Aliasing  y may be x; dx may be dy.
// Numerics  the factor 1/(1-p) is a float; one multiplication, one rounding. p has 24 bits.
// Traffic   one read, one write. With AVX-512 the generator makes some 1.5 numbers a cycle and
//           core: f32 is bound by memory, bf16 by the generator where the data is in a cache.
// Errors    usage: p outside (0,1). With p = 0 the caller has nothing to do and must not call.
#pragma once

#include <cstdint>

#include "engine/memory/context.h"

namespace snug {

struct DropoutSpec {
  float p = 0;        // probability of dropping a value
  uint32_t site = 0;  // which dropout of the model this is: sites differ, masks differ
};

void dropout_forward(Context& ctx, const View& y, const View& x, int64_t B, int64_t T,
                     const DropoutSpec& spec, const View& state);

void dropout_backward(Context& ctx, const View& dx, const View& dy, int64_t B, int64_t T,
                      const DropoutSpec& spec, const View& state);

}  // namespace snug
