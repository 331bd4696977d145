// A linear layer and what follows it, in one op: the rows and tiles of the product are finished by
// the thread that made them, while they are in its near caches (MatmulFinish).
//
// Math      p = round(x W^T + b), the value a linear layer alone would store;
//           linear_activation_forward     pre = p, act = f(p)
//           linear_residual_forward       out = residual + dropout(p)
//           linear_residual_norm_forward  the same, then y, mean, rstd = layernorm(out)
// Shapes    x (N,K), W (M,K), bias (M) or undefined; act, pre (N,M); out, residual (N,M) with
//           N = B*T; the norm's as in layernorm.h, of (N,M). An undefined pre is not stored, where
//           no backward wants it.
// dtypes    x, W, b as matmul takes them; act, pre, out, residual, y one of f32, bf16, f16;
//           weight and bias of the norm: that one or f32.
// Aliasing  none.
// Numerics  bit for bit what matmul followed by activation_forward, residual_forward and
//           layernorm_forward would store: p is rounded to the dtype of the output before it goes
//           on. So a memory policy may run the parts apart again.
// Cost      FLOPs of the parts. Bytes of the product (x, W, what it stores), and act if pre is
//           stored; residual; y and the statistics. Against the parts: pre is not read again for
//           act, a branch is neither written nor read, out is not read again for the norm. An act
//           and pre of 8 MiB or more are written past the caches.
// Memory    the product's scratch. No tensor of the size of the branch.
// Errors    those of the parts.
// Determinism  equal bits for any number of threads, as the product.
// In int8   a weight that rests as whole numbers has the product of int8_linear.h, and nothing is fused.
#pragma once

#include "engine/seams/weight_codes.h"
#include "layers/ops/activation.h"
#include "layers/ops/dropout.h"

namespace snug {

struct LinearWeights {
  View weight;  // undefined beside int8
  View bias;    // undefined: none
  View packed;  // what matmul_pack made of the weight for x W^T; undefined: none
  Int8Weight int8 = {};
};

// y = x W^T + b alone: a matmul, or the product of int8_linear.h.
void linear_product(Context& ctx, const View& y, const View& x, const LinearWeights& w);

// The stream a branch is added to.
struct ResidualInput {
  View residual;
  int64_t B = 0, T = 0;
  DropoutSpec dropout;
  View state;  // undefined is allowed if the dropout's p is 0
};

// A layer normalisation of what was just made.
struct NormOutput {
  View y, mean, rstd;
  View weight, bias;
  float eps = 0;
};

void linear_activation_forward(Context& ctx, const View& act, const View& pre, const View& x,
                               const LinearWeights& w, Activation kind);

void linear_residual_forward(Context& ctx, const View& out, const ResidualInput& in, const View& x,
                             const LinearWeights& w);

void linear_residual_norm_forward(Context& ctx, const NormOutput& norm, const View& out,
                                  const ResidualInput& in, const View& x, const LinearWeights& w);

}  // namespace snug
