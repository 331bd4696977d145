#include <cstring>
#include <type_traits>

#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/elementwise_simt.h"
#include "engine/kernels/kernel_queue.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/loops.h"

namespace snug {
namespace {

constexpr int64_t kGrain = 32 * 1024;  // elements a task: large against its start, small in cache

void expect_same_shape(const char* kernel, const View& y, const View& x) {
  if (y.shape == x.shape) return;
  fail(ErrorCode::shape, std::string(kernel) + ": y of the shape of x",
       describe(y) + " and " + describe(x),
       "check that the weights and the config belong together");
}

}  // namespace

void cast(Context& ctx, const View& y, const View& x) {
  expect_same_shape("cast", y, x);
  dispatch_float(y, "cast: y", [&](auto y_tag) {
    dispatch_float(x, "cast: x", [&](auto x_tag) {
      using Y = decltype(y_tag);
      using X = decltype(x_tag);
      Op op(ctx, "cast", {.flops = 0, .bytes = x.bytes() + y.bytes()});
      if (!op.run()) return;
      if (ctx.by_kernels()) return on_queue(ctx, [&](auto& queue) { cast_on(queue, y, x); });
      Y* to = y.as<Y>();
      const X* from = x.as<X>();
      const auto loop = pair_loops<Y, X>().cast;
      parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
        if constexpr (std::is_same_v<X, Y>)
          std::memmove(to + begin, from + begin, static_cast<size_t>(end - begin) * sizeof(X));
        else
          loop(to + begin, from + begin, end - begin);
      });
    });
  });
}

void copy(Context& ctx, const View& y, const View& x) {
  expect_same_shape("copy", y, x);
  expect_dtype(y, "copy: y", {x.dtype});
  Op op(ctx, "copy", {.flops = 0, .bytes = 2 * x.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels()) {
    const Context::AtWork work(ctx);
    return ctx.device().copy(y.data, x.data, x.bytes(), ctx.stream());
  }
  auto* to = static_cast<std::byte*>(y.data);
  const auto* from = static_cast<const std::byte*>(x.data);
  parallel_chunks(ctx.threads(), x.bytes(), 4 * kGrain, [=](int64_t begin, int64_t end) {
    std::memmove(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void fill_zero(Context& ctx, const View& x) {
  Op op(ctx, "fill_zero", {.flops = 0, .bytes = x.bytes()});
  if (!op.run()) return;
  if (ctx.by_kernels()) {
    const Context::AtWork work(ctx);
    return ctx.device().fill(x.data, 0, x.bytes(), ctx.stream());
  }
  auto* to = static_cast<std::byte*>(x.data);
  parallel_chunks(ctx.threads(), x.bytes(), 4 * kGrain, [=](int64_t begin, int64_t end) {
    std::memset(to + begin, 0, static_cast<size_t>(end - begin));
  });
}

void add(Context& ctx, const View& y, const View& x) {
  expect_same_shape("add", y, x);
  dispatch_float(y, "add: y", [&](auto y_tag) {
    dispatch_float(x, "add: x", [&](auto x_tag) {
      using Y = decltype(y_tag);
      using X = decltype(x_tag);
      Op op(ctx, "add", {.flops = x.elements(), .bytes = x.bytes() + 2 * y.bytes()});
      if (!op.run()) return;
      if (ctx.by_kernels()) return on_queue(ctx, [&](auto& queue) { add_on(queue, y, x); });
      Y* to = y.as<Y>();
      const X* from = x.as<X>();
      const auto loop = pair_loops<Y, X>().add;
      parallel_chunks(ctx.threads(), x.elements(), kGrain, [=](int64_t begin, int64_t end) {
        loop(to + begin, from + begin, end - begin);
      });
    });
  });
}

void scale(Context& ctx, const View& x, float factor) {
  dispatch_float(x, "scale: x", [&](auto tag) {
    using T = decltype(tag);
    Op op(ctx, "scale", {.flops = x.elements(), .bytes = 2 * x.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels()) return on_queue(ctx, [&](auto& queue) { scale_on(queue, x, factor); });
    T* v = x.as<T>();
    const auto loop = float_loops<T>().scale;
    parallel_chunks(ctx.threads(), x.elements(), kGrain,
                    [=](int64_t begin, int64_t end) { loop(v + begin, factor, end - begin); });
  });
}

}  // namespace snug
