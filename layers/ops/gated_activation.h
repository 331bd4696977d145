// The gated MLP's product of two branches, as the Llama family has it. Shazeer, "GLU Variants
// Improve Transformer", arXiv:2002.05202.
//
// Math      y[n][f] = act(gate[n][f]) up[n][f], where a row of gate_up is [gate | up]
//           dgate = dy up act'(gate);  dup = dy act(gate);  a row of dgate_up is [dgate | dup]
//           act: the formulas of activation.h.
// Shapes    y, dy (N,F); gate_up, dgate_up (N,2F).
// dtypes    one of f32, bf16, f16, the same for all.
// Aliasing  dgate_up may be gate_up. y and dy are tensors of their own.
// Numerics  float, rounded once: act(gate) is not rounded before its product, as it is where two
//           modules follow each other. Errors of act as in activation.h.
// Traffic   forward: gate_up once in, y out; backward: gate_up and dy in, dgate_up out.
// Determinism  equal bits for any number of threads, any split of the rows, and with or without
//           AVX-512; the sign of a NaN may differ.
#pragma once

#include "layers/ops/activation.h"

namespace snug {

void gated_activation_forward(Context& ctx, const View& y, const View& gate_up, Activation kind);

void gated_activation_backward(Context& ctx, const View& dgate_up, const View& dy,
                               const View& gate_up, Activation kind);

}  // namespace snug
