#include "engine/kernels/kernel_queue.h"

#include "engine/seams/grad_sink.h"

namespace snug {

void refuse_by_kernels(const Context& ctx, const char* what) {
  if (ctx.by_kernels())
    fail(ErrorCode::unsupported,
         std::string("an op with a kernel on the place ") + to_string(ctx.target()), what,
         "device=cpu");
}

void expect_gradient_dtype(const Context& ctx, const View& x, const char* argument) {
  expect_dtype(x, argument, {DType::f32, DType::bf16});
  expect_gradients_here(ctx, x.dtype);
}

}  // namespace snug
