#include "engine/kernels/dispatch.h"
#include "engine/kernels/row_chunks_kernel.h"
#include "layers/ops/layernorm_device.h"
#include "layers/ops/layernorm_dispatch.h"
#include "layers/ops/layernorm_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A warp a row, vectors of N; rows past the end are whole warps that leave, and no barrier follows.
template <class T, class W, int N>
__global__ void layernorm_forward_row_per_warp_kernel(T* y, float* mean_out, float* rstd_out,
                                                      const T* x, const W* weight, const W* bias,
                                                      int64_t rows, int64_t c, float eps) {
  const int64_t row = block() * warps() + warp();
  if (row >= rows) return;
  const T* x_n = x + row * c;
  normalise_row<T, W, N>(y + row * c, mean_out + row, rstd_out + row, x_n, weight, bias, c, eps,
                         [=](int64_t i) { return Pack<T, N>::load(x_n + i); });
}

template <class T, class W, int N>
__global__ void layernorm_backward_row_per_warp_kernel(T* dx, bool add_dx, const T* dy, const T* x,
                                                       const W* weight, const float* mean,
                                                       const float* rstd, int64_t rows, int64_t c) {
  const int64_t row = block() * warps() + warp();
  if (row >= rows) return;
  const T *dy_n = dy + row * c, *x_n = x + row * c;
  T* dx_n = dx + row * c;
  const float m = mean[row], s = rstd[row];
  float g_sum = 0.0f, gx_sum = 0.0f;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto d = Pack<T, N>::load(dy_n + i), v = Pack<T, N>::load(x_n + i);
    const auto w = Pack<W, N>::load(weight + i);
    for (int k = 0; k < N; ++k) {
      const float g = to_f32(d[k]) * to_f32(w[k]);
      g_sum += g;
      gx_sum += g * ((to_f32(v[k]) - m) * s);
    }
  }
  const auto width = static_cast<float>(c);
  const float g_mean = warp_sum(g_sum) / width, gx_mean = warp_sum(gx_sum) / width;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto d = Pack<T, N>::load(dy_n + i), v = Pack<T, N>::load(x_n + i);
    const auto w = Pack<W, N>::load(weight + i);
    Pack<T, N> out{};
    if (add_dx) out = Pack<T, N>::load(dx_n + i);
    for (int k = 0; k < N; ++k) {
      const float g = to_f32(d[k]) * to_f32(w[k]), xhat = (to_f32(v[k]) - m) * s;
      const float value = s * ((g - g_mean) - xhat * gx_mean);
      out[k] = from_f32<T>(add_dx ? to_f32(out[k]) + value : value);
    }
    out.store(dx_n + i);
  }
}

// partial[chunk][0 or 1][column]: the sums of dy xhat and of dy over the rows of a chunk. A block
// takes a tile of 32 N columns, a lane N of them, a warp every warps()-th row.
template <class T, int N>
__global__ void layernorm_backward_columns_kernel(float* partial, const T* dy, const T* x,
                                                  const float* mean, const float* rstd,
                                                  int64_t rows, int64_t chunk_rows, int64_t c) {
  constexpr int kTile = kWarp * N;
  const auto parts = dynamic_smem<float>();  // (warps, 2, kTile)
  const int64_t first = block() * kTile, column = first + lane() * N;
  const int64_t begin = block_y() * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float weight_sum[N] = {}, bias_sum[N] = {};
  if (column < c) {
    for (int64_t row = begin + warp(); row < end; row += warps()) {
      const auto d = Pack<T, N>::load(dy + row * c + column);
      const auto v = Pack<T, N>::load(x + row * c + column);
      const float m = mean[row], s = rstd[row];
      for (int k = 0; k < N; ++k) {
        weight_sum[k] += to_f32(d[k]) * ((to_f32(v[k]) - m) * s);
        bias_sum[k] += to_f32(d[k]);
      }
    }
  }
  for (int k = 0; k < N; ++k) {
    parts[warp() * 2 * kTile + lane() * N + k] = weight_sum[k];
    parts[(warp() * 2 + 1) * kTile + lane() * N + k] = bias_sum[k];
  }
  sync_threads();
  add_warps(parts, 2, kTile, c - first, partial + block_y() * 2 * c + first, c);
}

}  // namespace

template <class Queue>
void layernorm_forward_on(Queue& queue, const View& y, const View& mean, const View& rstd,
                          const View& x, const View& weight, const View& bias, float eps,
                          int threads) {
  const int64_t n = x.shape[0], c = x.shape[1];
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    constexpr int kWide = kVector<T>;
    const auto kernel = wide_rows<T>(c, {&y, &x, &weight, &bias})
                            ? layernorm_forward_row_per_warp_kernel<T, W, kWide>
                            : layernorm_forward_row_per_warp_kernel<T, W, 1>;
    launch(queue, {.blocks = ceil_div(n, int64_t{threads / kWarp}), .threads = threads},
           "layernorm_forward_row_per_warp", kernel, y.as<T>(), mean.as<float>(), rstd.as<float>(),
           x.as<const T>(), weight.as<const W>(),
           bias.defined() ? bias.as<const W>() : static_cast<const W*>(nullptr), n, c, eps);
  });
}

template <class Queue>
void layernorm_backward_on(Queue& queue, const View& dx, bool add_dx, const GradView& dweight,
                           const GradView& dbias, const View& partial, const View& dy,
                           const View& x, const View& weight, const View& mean, const View& rstd,
                           int threads) {
  const int64_t n = x.shape[0], c = x.shape[1];
  const int block_warps = threads / kWarp;
  // dx may be dy, so what only reads dy comes first.
  if (dweight.view.defined() || dbias.view.defined()) {
    const int64_t chunks = layernorm_backward_chunks(n);
    dispatch_float(x, "x", [&](auto tag) {
      using T = decltype(tag);
      const bool wide = wide_rows<T>(c, {&dy, &x});
      const int width = wide ? kVector<T> : 1;
      const int64_t tile = int64_t{kWarp} * width;
      launch(queue,
             {.blocks = ceil_div(c, tile),
              .threads = threads,
              .shared_bytes = block_warps * 2 * tile * int64_t{sizeof(float)},
              .blocks_y = chunks},
             "layernorm_backward_columns",
             wide ? layernorm_backward_columns_kernel<T, kVector<T>>
                  : layernorm_backward_columns_kernel<T, 1>,
             partial.as<float>(), dy.as<const T>(), x.as<const T>(), mean.as<const float>(),
             rstd.as<const float>(), n, row_chunk_rows(n), c);
    });
    const auto finish = [&](const GradView& gradient, int64_t offset) {
      if (!gradient.view.defined()) return;
      launch_add_chunks(queue, "layernorm_backward_chunks", gradient.view.template as<float>(),
                        gradient.add, partial.as<const float>() + offset, chunks, 2 * c, c,
                        threads);
    };
    finish(dweight, 0);
    finish(dbias, c);
  }
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    const auto kernel = wide_rows<T>(c, {&dx, &dy, &x, &weight})
                            ? layernorm_backward_row_per_warp_kernel<T, W, kVector<T>>
                            : layernorm_backward_row_per_warp_kernel<T, W, 1>;
    launch(queue, {.blocks = ceil_div(n, int64_t{block_warps}), .threads = threads},
           "layernorm_backward_row_per_warp", kernel, dx.as<T>(), add_dx, dy.as<const T>(),
           x.as<const T>(), weight.as<const W>(), mean.as<const float>(), rstd.as<const float>(), n,
           c);
  });
}

template void layernorm_forward_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                   const View&, const View&, float, int);
template void layernorm_backward_on(simt::Queue&, const View&, bool, const GradView&,
                                    const GradView&, const View&, const View&, const View&,
                                    const View&, const View&, const View&, int);

}  // namespace snug
