#include "layers/ops/softcap.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/softcap_simt.h"
#include "layers/ops/softcap_value.h"

namespace snug {
namespace {

constexpr int64_t kGrain = 16 * 1024;  // elements a task

void check_cap(float cap) {
  if (!(cap > 0) || !std::isfinite(cap))
    fail(ErrorCode::usage, "a soft cap above 0", fmt::format("{}", cap),
         "leave the soft cap out for logits as they come");
}

void expect_like(const View& x, const char* argument, const View& y) {
  if (y.shape == x.shape) return;
  fail(ErrorCode::shape, std::string(argument) + " of the shape of x",
       describe(y) + ", where x is " + describe(x),
       "check that the weights and the config belong together");
}

}  // namespace

void softcap_forward(Context& ctx, const View& y, const View& x, float cap) {
  check_cap(cap);
  expect_like(x, "y", y);
  expect_dtype(x, "x", {DType::f32});
  expect_dtype(y, "y", {DType::f32});
  Op op(ctx, "softcap_forward", {.flops = 20 * x.elements(), .bytes = x.bytes() + y.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels())
    return on_queue(ctx, [&](auto& queue) { softcap_forward_on(queue, y, x, cap); });
  auto* const to = y.as<float>();
  const auto* const from = x.as<float>();
  const float inverse = 1.0f / cap;
  parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = cap * softcap_tanh(from[i] * inverse);
  });
}

void softcap_backward(Context& ctx, const View& dx, const View& dy, const View& y, float cap) {
  check_cap(cap);
  expect_like(y, "dx", dx);
  expect_like(y, "dy", dy);
  expect_dtype(y, "y", {DType::f32});
  expect_dtype(dx, "dx", {dy.dtype});
  dispatch_float(dy, "dy", [&](auto tag) {
    using T = decltype(tag);
    Op op(ctx, "softcap_backward",
          {.flops = 4 * y.elements(), .bytes = dx.bytes() + dy.bytes() + y.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { softcap_backward_on(queue, dx, dy, y, cap); });
    T* const to = dx.as<T>();
    const T* const from = dy.as<T>();
    const auto* const capped = y.as<float>();
    const float inverse = 1.0f / cap;
    parallel_chunks(ctx.threads(), y.elements(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float t = capped[i] * inverse;
        to[i] = from_f32<T>(to_f32(from[i]) * (1.0f - t * t));
      }
    });
  });
}

}  // namespace snug
