// A row of layer normalisation: one implementation for the op and for what ends in it.
#pragma once

#include "layers/ops/layernorm.h"
#include "layers/ops/layernorm_dispatch.h"
#include "layers/ops/row_loops.h"

namespace snug {

template <class T, class W>
void layernorm_row(T* y, float* mean_out, float* rstd_out, const T* x, const W* weight,
                   const W* bias, int64_t c, float eps) {
  norm_loops<T, W>().forward(y, mean_out, rstd_out, x, weight, bias, 1, c, eps, false);
}

// Entry checks of the forward, in layernorm.cpp.
void check_layernorm(const View& y, const View& mean, const View& rstd, const View& x,
                     const View& weight, const View& bias);

}  // namespace snug
