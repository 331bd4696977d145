// Normalisation as a stage, fused with the linear_residual before it.
#pragma once

#include "layers/parts/linear.h"

namespace snug {

struct NormParams {
  int weight = -1;
  int bias = -1;  // -1: root mean square normalisation, which has no mean either
  bool unit_offset = false;
};

// y = dropout(norm(x)) as the spec has it. Slots mean<k>, rstd<k> and norm<k> or `slot`, stage
// norm<k>; saves x and the statistics. The dropout is done in place.
int norm(Wiring& w, const char* name, const char* k, int x, const char* slot = nullptr,
         BranchDropout dropout = {});
// out = residual + norm(x), a branch that is normed before it is added: stage norm<k>, slots mean<k>,
// rstd<k> and `slot`; saves x and the statistics. The gradient of the residual is out's, handed on in
// place. With 16-bit activations the normed values are rounded before they are added, as in
// transformers.
int norm_residual(Wiring& w, const char* name, const char* k, int x, int residual,
                  const char* slot);
NormParams norm_params(Wiring& w, const char* name, int64_t width);

// The ops on their own.
void norm_forward(Context& ctx, Runtime& rt, const NormParams& p, const View& y, const View& mean,
                  const View& rstd, const View& x, float epsilon);
// dx (+)= the gradient of the input; dweight and dbias (+)=; `dropped`: see layernorm.h.
void norm_backward(Context& ctx, Runtime& rt, const NormParams& p, const GradView& dx,
                   const View& dy, const View& x, const View& mean, const View& rstd,
                   const DroppedCopy& dropped = {});

}  // namespace snug
