// From the dtypes of a normalisation, known at run time, to types, for the CPU and the kernels.
#pragma once

#include "engine/core/error.h"
#include "engine/kernels/dispatch.h"

namespace snug {

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

}  // namespace snug
