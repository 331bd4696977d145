#include "layers/ops/lstm_cell.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/kernel_queue.h"
#include "layers/ops/lstm_cell_simt.h"

namespace snug {
namespace {

constexpr int64_t kGrain = 1024;

// The sigmoid and its derivative, which keeps its digits where the sigmoid is nearly 1.
struct Sigmoid {
  explicit Sigmoid(float x) {
    const float e = std::exp(-std::fabs(x)), r = 1.0f / (1.0f + e);
    value = x < 0.0f ? e * r : r;
    slope = e * (r * r);
  }
  float value, slope;
};

void check(const View& gates, const View& c, const View& c_before) {
  if (gates.shape.rank() != 2 || gates.shape[1] % 4 != 0)
    fail(ErrorCode::shape, "lstm_cell: gates of shape (N,4H)", describe(gates),
         "lay the four gates of a row beside each other");
  const int64_t n = gates.shape[0], h = gates.shape[1] / 4;
  expect(c, "lstm_cell: c", {{"N", n}, {"H", h}});
  expect_dtype(c, "lstm_cell: c", {gates.dtype});
  if (!c_before.defined()) return;
  expect(c_before, "lstm_cell: c_before", {{"N", n}, {"H", h}});
  expect_dtype(c_before, "lstm_cell: c_before", {gates.dtype});
}

void expect_as(const View& x, const char* argument, const View& c) {
  expect(x, argument, {{"N", c.shape[0]}, {"H", c.shape[1]}});
  expect_dtype(x, argument, {c.dtype});
}

}  // namespace

void lstm_cell_forward(Context& ctx, const View& h, const View& c, const View& gates,
                       const View& c_before) {
  check(gates, c, c_before);
  expect_as(h, "lstm_cell: h", c);
  dispatch_float(gates, "lstm_cell: gates", [&](auto tag) {
    using T = decltype(tag);
    const int64_t before = c_before.defined() ? c_before.bytes() : 0;
    Op op(ctx, "lstm_cell_forward",
          {.flops = 24 * c.elements(), .bytes = gates.bytes() + before + h.bytes() + c.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx,
                      [&](auto& queue) { lstm_cell_forward_on(queue, h, c, gates, c_before); });
    const int64_t H = c.shape[1];
    T *const to_h = h.as<T>(), *const to_c = c.as<T>();
    const T* const all = gates.as<const T>();
    const T* const old = c_before.defined() ? c_before.as<const T>() : nullptr;
    parallel_chunks(ctx.threads(), c.elements(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const T* const at = all + k / H * 4 * H + k % H;
        const float i = Sigmoid(to_f32(at[0])).value, f = Sigmoid(to_f32(at[H])).value,
                    g = std::tanh(to_f32(at[2 * H])), o = Sigmoid(to_f32(at[3 * H])).value;
        const float now = (old ? f * to_f32(old[k]) : 0.0f) + i * g;
        to_c[k] = from_f32<T>(now);
        to_h[k] = from_f32<T>(o * std::tanh(now));
      }
    });
  });
}

void lstm_cell_backward(Context& ctx, const View& dgates, const View& dc, const View& dh,
                        const View& gates, const View& c, const View& c_before) {
  check(gates, c, c_before);
  expect(dgates, "lstm_cell: dgates", {{"N", gates.shape[0]}, {"4H", gates.shape[1]}});
  expect_dtype(dgates, "lstm_cell: dgates", {gates.dtype});
  expect_as(dc, "lstm_cell: dc", c);
  expect_as(dh, "lstm_cell: dh", c);
  dispatch_float(gates, "lstm_cell: gates", [&](auto tag) {
    using T = decltype(tag);
    const int64_t before = c_before.defined() ? c_before.bytes() : 0;
    Op op(ctx, "lstm_cell_backward",
          {.flops = 42 * c.elements(),
           .bytes = 2 * gates.bytes() + before + c.bytes() + dh.bytes() + 2 * dc.bytes()});
    if (!op.run()) return;
    if (ctx.by_kernels())
      return on_queue(ctx, [&](auto& queue) {
        lstm_cell_backward_on(queue, dgates, dc, dh, gates, c, c_before);
      });
    const int64_t H = c.shape[1];
    T *const to = dgates.as<T>(), *const state = dc.as<T>();
    const T *const all = gates.as<const T>(), *const now = c.as<const T>(),
                   *const slope = dh.as<const T>();
    const T* const old = c_before.defined() ? c_before.as<const T>() : nullptr;
    parallel_chunks(ctx.threads(), c.elements(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t at = k / H * 4 * H + k % H;
        const Sigmoid i(to_f32(all[at])), f(to_f32(all[at + H])), o(to_f32(all[at + 3 * H]));
        const float g = std::tanh(to_f32(all[at + 2 * H])), t = std::tanh(to_f32(now[k]));
        const float from = to_f32(slope[k]);
        const float d = to_f32(state[k]) + from * o.value * (1.0f - t * t);
        to[at] = from_f32<T>(d * g * i.slope);
        to[at + H] = from_f32<T>(old ? d * to_f32(old[k]) * f.slope : 0.0f);
        to[at + 2 * H] = from_f32<T>(d * i.value * (1.0f - g * g));
        to[at + 3 * H] = from_f32<T>(from * t * o.slope);
        state[k] = from_f32<T>(d * f.value);
      }
    });
  });
}

}  // namespace snug
