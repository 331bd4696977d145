// Activation functions of the MLP, one argument.
//
// Math      gelu_tanh  x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))   Hendrycks and Gimpel,
//           gelu_erf   x/2 (1 + erf(x / sqrt(2)))                       arXiv:1606.08415
//           relu       max(x, 0), with slope 0 at 0; -0 stays -0, as in PyTorch
//           silu       x / (1 + e^-x)
//           tanh       of BERT's pooler
//           dx = dy f'(x)
// Shapes    y, x, dy, dx: equal shapes, any rank.
// dtypes    one of f32, bf16, f16, the same for all.
// Aliasing  y may be x; dx may be dy or x.
// Numerics  float, with fused multiply-adds, erf, exp and e^x - 1 by polynomials: absolute error of
// y below
//           1e-6 |x|, of dx below 1e-6 |dy|.
// Traffic   forward: x once in, y once out; backward: x and dy in, dx out.
// Determinism  equal bits for any number of threads, any split of the rows, and with or without
//           AVX-512, which is used where the machine has it; the sign of a NaN may differ.
#pragma once

#include <string_view>

#include "engine/memory/context.h"

namespace snug {

enum class Activation : uint8_t { gelu_tanh, gelu_erf, relu, silu, tanh };

const char* to_string(Activation kind);

// The `hidden_act` or `activation_function` of a Hugging Face config: gelu_new, gelu_pytorch_tanh
// and gelu_fast are gelu_tanh (the same formula, coded three times), gelu is gelu_erf, relu, tanh,
// and silu or swish. Throws unsupported on any other, listing these.
Activation parse_activation(std::string_view name);

void activation_forward(Context& ctx, const View& y, const View& x, Activation kind);

void activation_backward(Context& ctx, const View& dx, const View& dy, const View& x,
                         Activation kind);

}  // namespace snug
