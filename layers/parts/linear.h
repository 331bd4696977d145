// Linear layers as stages: y = x W^T + b, alone or with the residual stream behind it.
#pragma once

#include "layers/parts/wiring.h"

namespace snug {

struct LinearShape {
  const char* name;  // of the parameters, before .weight and .bias
  int64_t out = 0;
  float init_std = 0.02f;
  bool bias = true;
  bool transposed_in_file = false;
};

// A stage of this name; its slot is y (N,out). Saves x for dW. A layer that an adapter is for has
// another stage before it, and saves what that one says (adapter.h).
int linear(Wiring& w, const char* stage, const char* slot, const LinearShape& shape, int x,
           const InPlace& behind = {});
// out = residual + dropout(x W^T + b). The gradient of the residual is out's, handed on in place.
int linear_residual(Wiring& w, const char* stage, const char* slot, const LinearShape& shape, int x,
                    int residual, BranchDropout dropout);

// The ops on their own, for parts that are no stages and for fused pairs.
void linear_forward(Context& ctx, Runtime& rt, const LinearParams& p, const View& y, const View& x);
// dW (+)= dy^T x, db (+)= column sums of dy; skipped for parameters the sink does not want.
void linear_backward_params(Context& ctx, Runtime& rt, const LinearParams& p, const View& dy,
                            const View& x);
// dx (+)= dy W.
void linear_backward_input(Context& ctx, Runtime& rt, const LinearParams& p, const GradView& dx,
                           const View& dy);
// What follows forward of a linear_residual: `branch` is the gradient of the branch, before the add.
void linear_residual_backward(Context& ctx, Pass& p, const Wiring::Linear& l, Tensor branch);
// What the op of the add and the dropout takes.
ResidualInput residual_input(const Pass& p, const Wiring::Linear& l);

// While it lives, ops are those of the layer.
inline Context::Scope scope_of(Context& ctx, const LinearParams& p) {
  return Context::Scope(ctx, p.of.empty() ? ctx.scope() : p.of);
}

// Calls f(LinearWeights) while the weights are held.
template <class F>
void with_weights(Context& ctx, Runtime& rt, const LinearParams& p, F&& f) {
  const Context::Scope scope = scope_of(ctx, p);
  const Int8Weight int8 = rt.params.acquire_int8(ctx, p.weight);
  f(LinearWeights{int8.any() ? View() : rt.params.acquire(ctx, p.weight),
                  p.bias >= 0 ? rt.params.acquire(ctx, p.bias) : View(),
                  rt.packed_weight(p.weight).forward, int8});
  rt.params.release(ctx, p.weight);
  if (p.bias >= 0) rt.params.release(ctx, p.bias);
}

}  // namespace snug
