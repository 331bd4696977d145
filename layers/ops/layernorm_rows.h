// A row of layer normalisation: one implementation for the op and for what ends in it.
#pragma once

#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"
#include "layers/ops/layernorm.h"
#include "layers/ops/row_loops.h"

namespace snug {

template <class T, class W>
void layernorm_row(T* y, float* mean_out, float* rstd_out, const T* x, const W* weight,
                   const W* bias, int64_t c, float eps) {
  norm_loops<T, W>().forward(y, mean_out, rstd_out, x, weight, bias, c, eps);
}

// Calls f(T{}, W{}) for the dtypes of x and of the weight.
template <class F>
void dispatch_norm(const View& x, const View& weight, F&& f) {
  dispatch_float(x, "x", [&](auto tag) {
    if (weight.dtype == x.dtype) {
      f(tag, tag);
    } else if (weight.dtype == DType::f32) {
      f(tag, float{});
    } else {
      fail(ErrorCode::unsupported, "weight of dtype f32 or that of x",
           describe(weight) + " and " + describe(x), "choose another precision");
    }
  });
}

// Entry checks of the forward, in layernorm.cpp.
void check_layernorm(const View& y, const View& mean, const View& rstd, const View& x,
                     const View& weight, const View& bias);

}  // namespace snug
