// What a part needs besides its slots: weights, where gradients go, and the numbers of the step.
#pragma once

#include <vector>

#include "engine/memory/pass.h"
#include "engine/seams/grad_sink.h"
#include "engine/seams/param_store.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/linear.h"
#include "layers/parts/packed_weights.h"

namespace snug {

// Keys and values of the tokens seen so far, one pair a layer: (B, P, G, D). Made inside a resident
// program, so that it lives across decode programs.
struct KvCache {
  std::vector<Tensor> k, v;
  int64_t P = 0;
  int64_t first_row = 0;  // the sequence that row 0 of a pass is; a pass may have fewer than B rows

  View keys(size_t layer, int64_t rows) const { return k[layer].view().rows(first_row, rows); }
  View values(size_t layer, int64_t rows) const { return v[layer].view().rows(first_row, rows); }
};

struct Runtime {
  ParamStore& params;
  GradSink* grads = nullptr;              // null in inference
  View state;                             // StepState
  KvCache* cache = nullptr;               // non-null: attention reads and extends it
  const PackedWeights* packed = nullptr;  // non-null: linear layers read these copies
  View document_start = {};               // (B,T) i32: documents kept apart; undefined: one each

  PackedWeight packed_weight(int param) const { return packed ? (*packed)[param] : PackedWeight{}; }
};

// Parameters of y = x W^T + b. W is (out, in).
struct LinearParams {
  int weight = -1;
  int bias = -1;  // -1: none
};

// y (N,out) = x (N,in) W^T + b.
void linear_forward(Context& ctx, Runtime& rt, const LinearParams& p, const View& y, const View& x);
// The same and what follows it, in one op (layers/ops/linear.h) or two, whichever is faster.
void linear_activation_forward(Context& ctx, Runtime& rt, const LinearParams& p, const View& act,
                               const View& pre, const View& x, Activation kind);
void linear_residual_forward(Context& ctx, Runtime& rt, const LinearParams& p, const View& out,
                             const ResidualInput& in, const View& x);
// dW (+)= dy^T x, db (+)= column sums of dy; skipped for parameters the sink does not want.
void linear_backward_params(Context& ctx, Runtime& rt, const LinearParams& p, const View& dy,
                            const View& x);
// dx = dy W.
void linear_backward_input(Context& ctx, Runtime& rt, const LinearParams& p, const View& dx,
                           const View& dy);

struct NormParams {
  int weight = -1;
  int bias = -1;
};
void norm_forward(Context& ctx, Runtime& rt, const NormParams& p, const View& y, const View& mean,
                  const View& rstd, const View& x, float epsilon);
// out = in.residual + dropout(x W^T + b), and its norm.
void linear_residual_norm_forward(Context& ctx, Runtime& rt, const LinearParams& p,
                                  const NormParams& norm, const View& y, const View& mean,
                                  const View& rstd, float epsilon, const View& out,
                                  const ResidualInput& in, const View& x);
// dx = or += the gradient of the input; dweight and dbias (+)=; `dropped`: see layernorm.h.
void norm_backward(Context& ctx, Runtime& rt, const NormParams& p, const View& dx, bool add_dx,
                   const View& dy, const View& x, const View& mean, const View& rstd,
                   const DroppedCopy& dropped = {});

}  // namespace snug
