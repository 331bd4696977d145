// The steps between Muon's products for engine/simt, with the bits of optim/muon.cpp.
//
// Launches  one each; muon_normalize three. Nothing is read of a gradient in a skipped step.
#pragma once

#include "engine/core/view.h"
#include "optim/muon.h"

namespace snug {

// Of n elements: the momentum is moved, `to` is what is orthogonalised. In a skipped step `to` is zero and
// the momentum stays. All f32.
template <class Queue>
void muon_momentum_on(Queue& queue, const MuonNumbers& numbers, const View& to,
                      const View& momentum, const View& gradient, const View& state);

// to = x / max(|x|, epsilon); x f32, `to` f32 or bf16. sums: f64, one a chunk of optim/whole.h and one more.
template <class Queue>
void muon_normalize_on(Queue& queue, float epsilon, const View& to, const View& x,
                       const View& sums);

// to = factor x, f32 or bf16 each; `to` may be x where it is of its dtype.
template <class Queue>
void muon_scaled_on(Queue& queue, const View& to, const View& x, float factor);

}  // namespace snug
