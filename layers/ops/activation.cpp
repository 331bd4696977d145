#include "layers/ops/activation.h"

#include <fmt/format.h>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/activation_dispatch.h"
#include "layers/ops/activation_simt.h"
#include "layers/ops/row_loops.h"

namespace snug {
namespace {

constexpr int64_t kGrain = 16 * 1024;  // elements a task

void expect_like(const View& x, const char* argument, const View& y) {
  if (y.shape == x.shape && y.dtype == x.dtype) return;
  fail(ErrorCode::shape, std::string(argument) + " of the shape and dtype of x",
       describe(y) + ", where x is " + describe(x),
       "check that the weights and the config belong together");
}

}  // namespace

const char* to_string(Activation kind) {
  switch (kind) {
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::gelu_erf:
      return "gelu_erf";
    case Activation::relu:
      return "relu";
    case Activation::silu:
      return "silu";
    case Activation::tanh:
      return "tanh";
  }
  return "?";
}

Activation parse_activation(std::string_view name) {
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast")
    return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu_erf;
  if (name == "relu") return Activation::relu;
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "tanh") return Activation::tanh;
  fail(ErrorCode::unsupported,
       "an activation function of gelu_new, gelu_pytorch_tanh, gelu_fast, gelu, relu, silu, swish, "
       "tanh",
       fmt::format("\"{}\"", name), "use a model with one of these");
}

void activation_forward(Context& ctx, const View& y, const View& x, Activation kind) {
  expect_like(x, "y", y);
  dispatch_float(x, "x", [&](auto tag) {
    using T = decltype(tag);
    const ActivationLoops<T> loops = activation_loops<T>(kind);
    Op op(ctx, "activation_forward",
          {.flops = flops_of(kind) * x.elements(), .bytes = x.bytes() + y.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { activation_forward_on(queue, y, x, kind); });
    const auto loop = loops.values;
    T* to = y.as<T>();
    const T* from = x.as<T>();
    parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
      loop(to + begin, from + begin, end - begin);
    });
  });
}

void activation_backward(Context& ctx, const View& dx, const View& dy, const View& x,
                         Activation kind) {
  expect_like(x, "dx", dx);
  expect_like(x, "dy", dy);
  dispatch_float(x, "x", [&](auto tag) {
    using T = decltype(tag);
    const ActivationLoops<T> loops = activation_loops<T>(kind);
    Op op(ctx, "activation_backward",
          {.flops = (flops_of(kind) + 6) * x.elements(), .bytes = 3 * x.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) { activation_backward_on(queue, dx, dy, x, kind); });
    const auto loop = loops.slopes;
    T* to = dx.as<T>();
    const T* dfrom = dy.as<T>();
    const T* from = x.as<T>();
    parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
      loop(to + begin, dfrom + begin, from + begin, end - begin);
    });
  });
}

}  // namespace snug
