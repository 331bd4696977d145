#include "engine/seams/grad_sink.h"

#include "engine/core/error.h"

namespace snug {

void expect_gradients_here(const Context& ctx, DType dtype) {
  if (ctx.by_kernels() && dtype != DType::f32)
    fail(ErrorCode::unsupported,
         std::string("gradients in f32 on the place ") + to_string(ctx.target()), to_string(dtype),
         "add gradients to allow to go on with them in f32, or device=cpu");
}

}  // namespace snug
