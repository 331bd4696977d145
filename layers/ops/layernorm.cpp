#include "layers/ops/layernorm.h"

#include <cmath>

#include "engine/core/error.h"
#include "engine/core/parallel.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/lanes.h"
#include "engine/kernels/row_split.h"

namespace snug {
namespace {

// Rows of a task: some 16 Ki elements.
int64_t row_grain(int64_t c) {
  return std::max<int64_t>(1, 16 * 1024 / std::max<int64_t>(c, 1));
}

template <class T, class W>
void forward_row(T* y, float* mean_out, float* rstd_out, const T* x, const W* weight, const W* bias,
                 int64_t c, float eps) {
  const auto width = static_cast<float>(c);
  const float mean =
      sum_lanes(c, [=](int64_t i, int64_t r) { return load_lanes(x + i, r); }) / width;
  const float square = sum_lanes(c, [=](int64_t i, int64_t r) {
    const F32x8 d = load_lanes(x + i, r) - splat8(mean);
    return d * d;
  });
  const float rstd = 1.0f / std::sqrt(square / width + eps);
  *mean_out = mean;
  *rstd_out = rstd;
  if (bias) {
#pragma omp simd
    for (int64_t i = 0; i < c; ++i)
      y[i] = from_f32<T>((to_f32(x[i]) - mean) * rstd * to_f32(weight[i]) + to_f32(bias[i]));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < c; ++i)
      y[i] = from_f32<T>((to_f32(x[i]) - mean) * rstd * to_f32(weight[i]));
  }
}

template <class T, class W>
void backward_row(T* dx, bool add_dx, const T* dy, const T* x, const W* weight, float mean,
                  float rstd, int64_t c) {
  const auto width = static_cast<float>(c);
  const float g_mean =
      sum_lanes(c, [=](int64_t i,
                       int64_t r) { return load_lanes(dy + i, r) * load_lanes(weight + i, r); }) /
      width;
  const float gx_mean = sum_lanes(c,
                                  [=](int64_t i, int64_t r) {
                                    const F32x8 xhat =
                                        (load_lanes(x + i, r) - splat8(mean)) * splat8(rstd);
                                    return load_lanes(dy + i, r) * load_lanes(weight + i, r) * xhat;
                                  }) /
                        width;
  const auto value = [=](int64_t i) {
    const float xhat = (to_f32(x[i]) - mean) * rstd;
    return rstd * ((to_f32(dy[i]) * to_f32(weight[i]) - g_mean) - xhat * gx_mean);
  };
  if (add_dx) {
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) dx[i] = from_f32<T>(to_f32(dx[i]) + value(i));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) dx[i] = from_f32<T>(value(i));
  }
}

// Adds a row to the sums of the parameters; a null sum is not wanted.
template <class T>
void param_row(float* dweight, float* dbias, const T* dy, const T* x, float mean, float rstd,
               int64_t c) {
  if (dweight) {
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) dweight[i] += to_f32(dy[i]) * ((to_f32(x[i]) - mean) * rstd);
  }
  if (dbias) {
#pragma omp simd
    for (int64_t i = 0; i < c; ++i) dbias[i] += to_f32(dy[i]);
  }
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

int64_t check_rows(const View& x, const View& mean, const View& rstd, const View& weight) {
  if (x.shape.rank() != 2)
    fail(ErrorCode::shape, "x of shape (N,C)", describe(x), "reshape it to rows and columns");
  expect(mean, "mean", {{"N", x.shape[0]}});
  expect(rstd, "rstd", {{"N", x.shape[0]}});
  expect_dtype(mean, "mean", {DType::f32});
  expect_dtype(rstd, "rstd", {DType::f32});
  expect(weight, "weight", {{"C", x.shape[1]}});
  return x.shape[1];
}

}  // namespace

void layernorm_forward(Context& ctx, const View& y, const View& mean, const View& rstd,
                       const View& x, const View& weight, const View& bias, float eps) {
  const int64_t c = check_rows(x, mean, rstd, weight), n = x.shape[0];
  expect(y, "y", {{"N", n}, {"C", c}});
  expect_dtype(y, "y", {x.dtype});
  if (bias.defined()) {
    expect(bias, "bias", {{"C", c}});
    expect_dtype(bias, "bias", {weight.dtype});
  }
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    Op op(ctx, "layernorm_forward", {.flops = 8 * n * c, .bytes = x.bytes() + y.bytes() + 8 * n});
    if (!op.run()) return;
    const W* shift = bias.defined() ? bias.as<W>() : nullptr;
    parallel_chunks(ctx.threads(), n, row_grain(c), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        forward_row<T, W>(y.as<T>() + row * c, mean.as<float>() + row, rstd.as<float>() + row,
                          x.as<T>() + row * c, weight.as<W>(), shift, c, eps);
    });
  });
}

void layernorm_backward(Context& ctx, const View& dx, bool add_dx, const GradView& dweight,
                        const GradView& dbias, const View& dy, const View& x, const View& weight,
                        const View& mean, const View& rstd) {
  const int64_t c = check_rows(x, mean, rstd, weight), n = x.shape[0];
  for (const auto& [view, argument] : {std::pair{&dx, "dx"}, std::pair{&dy, "dy"}}) {
    expect(*view, argument, {{"N", n}, {"C", c}});
    expect_dtype(*view, argument, {x.dtype});
  }
  for (const auto& [view, argument] :
       {std::pair{&dweight.view, "dweight"}, std::pair{&dbias.view, "dbias"}}) {
    if (!view->defined()) continue;
    expect(*view, argument, {{"C", c}});
    expect_dtype(*view, argument, {DType::f32});
  }
  const bool want_weight = dweight.view.defined(), want_bias = dbias.view.defined();
  const RowSplit split(n);
  static const Name kPartial("layernorm_backward.partial");
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    Tensor partial;
    if (want_weight || want_bias)
      partial = ctx.tensor(kPartial, {split.chunks, 2, c}, DType::f32, Category::workspace);
    Op op(ctx, "layernorm_backward",
          {.flops = 17 * n * c,
           .bytes = x.bytes() + dy.bytes() + dx.bytes() * (add_dx ? 2 : 1) + 8 * n});
    if (!op.run()) return;
    float* sums = partial.defined() ? partial.view().as<float>() : nullptr;
    parallel_for(ctx.threads(), split.chunks, [&](int64_t k) {
      float* weight_sum = want_weight ? sums + 2 * k * c : nullptr;
      float* bias_sum = want_bias ? sums + (2 * k + 1) * c : nullptr;
      if (weight_sum) std::fill(weight_sum, weight_sum + c, 0.0f);
      if (bias_sum) std::fill(bias_sum, bias_sum + c, 0.0f);
      const int64_t end = std::min(n, (k + 1) * split.rows);
      for (int64_t row = k * split.rows; row < end; ++row) {
        const T* dy_row = dy.as<T>() + row * c;
        const T* x_row = x.as<T>() + row * c;
        const float m = mean.as<float>()[row], r = rstd.as<float>()[row];
        // First what only reads dy: dx may lie on it.
        param_row(weight_sum, bias_sum, dy_row, x_row, m, r, c);
        backward_row(dx.as<T>() + row * c, add_dx, dy_row, x_row, weight.as<W>(), m, r, c);
      }
    });
    parallel_chunks(ctx.threads(), c, 256, [&](int64_t begin, int64_t end) {
      if (want_weight)
        add_chunks(dweight.view.as<float>(), dweight.add, sums, split.chunks, 2 * c, begin, end);
      if (want_bias)
        add_chunks(dbias.view.as<float>(), dbias.add, sums + c, split.chunks, 2 * c, begin, end);
    });
  });
}

}  // namespace snug
