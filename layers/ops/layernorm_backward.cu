#include <algorithm>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/row_chunks_kernel.h"
#include "layers/ops/dropout_device.h"
#include "layers/ops/layernorm_device.h"
#include "layers/ops/layernorm_dispatch.h"
#include "layers/ops/layernorm_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

template <class T, class W>
struct BackwardTensors {
  T* dx;
  const T *dy, *x;
  const W* weight;
  const float *mean, *rstd;
  bool add_dx;
  // The dropped copy of dx; null: none. state null: nothing is dropped.
  T* dropped;
  const StepState* state;
  int64_t tokens;
  MaskConstants mask;
};

// dx of one row by a warp, and its dropped copy. dy and x come from the cache, where the sums over
// the columns have just read them.
template <class T, class W, int N>
__device__ inline void backward_row(const BackwardTensors<T, W>& io, const MaskKey& key,
                                    int64_t row, int64_t c) {
  const T *dy_n = io.dy + row * c, *x_n = io.x + row * c;
  T* dx_n = io.dx + row * c;
  const float m = io.mean[row], s = io.rstd[row];
  float g_sum = 0.0f, gx_sum = 0.0f;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto d = Pack<T, N>::load(dy_n + i), v = Pack<T, N>::load(x_n + i);
    const auto w = Pack<W, N>::load(io.weight + i);
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
    const auto w = Pack<W, N>::load(io.weight + i);
    Pack<T, N> out{};
    if (io.add_dx) out = Pack<T, N>::load(dx_n + i);
    for (int k = 0; k < N; ++k) {
      const float g = to_f32(d[k]) * to_f32(w[k]), xhat = (to_f32(v[k]) - m) * s;
      const float value = s * ((g - g_mean) - xhat * gx_mean);
      out[k] = from_f32<T>(io.add_dx ? to_f32(out[k]) + value : value);
    }
    out.store(dx_n + i);
    if (!io.dropped) continue;
    if (io.state) {
      const uint32_t keep =
          keep_bits<N>(key, row / io.tokens, row % io.tokens, i, io.mask.threshold);
      for (int k = 0; k < N; ++k)
        out[k] = from_f32<T>(snug::dropped(to_f32(out[k]), io.mask.kept, keep, k));
    }
    out.store(io.dropped + row * c + i);
  }
}

template <class T, class W, int N>
__device__ inline void add_rows(const ColumnSums<N, 2>& to, const BackwardTensors<T, W>& io,
                                int64_t begin, int64_t end, int64_t c) {
  for (int item = thread(); item < to.vectors() * to.slots; item += threads()) {
    const int64_t column = to.first + item % to.vectors() * N;
    auto weight_sum = to.load(item, 0), bias_sum = to.load(item, 1);
#pragma unroll 4
    for (int64_t row = begin + item / to.vectors(); row < end; row += to.slots) {
      const auto d = Pack<T, N>::load(io.dy + row * c + column);
      const auto v = Pack<T, N>::load(io.x + row * c + column);
      const float m = io.mean[row], s = io.rstd[row];
      for (int k = 0; k < N; ++k) {
        weight_sum[k] += to_f32(d[k]) * ((to_f32(v[k]) - m) * s);
        bias_sum[k] += to_f32(d[k]);
      }
    }
    to.store(item, 0, weight_sum);
    to.store(item, 1, bias_sum);
  }
}

// A block for a chunk of rows, warps() of them at a time: first the sums over rows of `columns`
// columns from `first` on (0: none), then, if `rows_too`, dx, a warp a row. dx may be dy, so a
// barrier is between. partial[chunk][0 or 1][column].
template <class T, class W, int N>
__global__ void layernorm_backward_kernel(BackwardTensors<T, W> io, float* partial, bool rows_too,
                                          int64_t first, int columns, int slots, int64_t rows,
                                          int64_t chunk_rows, int64_t c) {
  const ColumnSums<N, 2> sums{dynamic_smem<float>(), first, columns, slots};
  MaskKey key{};
  if (io.state) key = mask_key(*io.state, io.mask.site);
  for (int item = thread(); item < sums.vectors() * slots; item += threads()) {
    sums.store(item, 0, {});
    sums.store(item, 1, {});
  }
  const int64_t begin = block() * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  for (int64_t base = begin; base < end; base += warps()) {
    add_rows(sums, io, base, base + warps() < end ? base + warps() : end, c);
    sync_threads();
    if (rows_too && base + warp() < end) backward_row<T, W, N>(io, key, base + warp(), c);
  }
  if (columns == 0) return;
  sync_threads();
  float* const to = partial + block() * 2 * c + first;
  for (int i = thread(); i < 2 * columns; i += threads()) {
    const int kind = i / columns, column = i % columns;
    float sum = 0.0f;
    for (int slot = 0; slot < slots; ++slot)
      sum += sums.sums[sums.place(slot * sums.vectors() + column / N, kind, column % N)];
    to[kind * c + column] = sum;
  }
}

struct SumsOverRows {
  float* to;  // null: not wanted
  bool add;
};

// Both gradients from the chunks in one launch: the second row of blocks has dbias.
__global__ void layernorm_backward_chunks_kernel(SumsOverRows dweight, SumsOverRows dbias,
                                                 const float* partial, int64_t chunks, int64_t c) {
  const SumsOverRows out = block_y() == 0 ? dweight : dbias;
  if (!out.to) return;  // the whole block
  add_chunks_of_columns(out.to, out.add, partial + block_y() * c, chunks, 2 * c, c);
}

template <class T, class W, int N, class Queue>
void launch_backward(Queue& queue, const BackwardTensors<T, W>& io, float* partial, int64_t n,
                     int64_t c, int threads) {
  const auto run = [&](const char* name, bool rows_too, int64_t first, int64_t columns) {
    const auto vectors = static_cast<int>(columns / N);
    const int slots = vectors == 0 ? 1 : std::clamp(threads / vectors, 1, threads / kWarp);
    launch(queue,
           {.blocks = layernorm_backward_chunks(n),
            .threads = threads,
            .shared_bytes = slots * 2 * columns * int64_t{sizeof(float)}},
           name, layernorm_backward_kernel<T, W, N>, io, partial, rows_too, first,
           static_cast<int>(columns), slots, n, layernorm_backward_chunk_rows(n), c);
  };
  if (!partial) return run("layernorm_backward", true, 0, 0);
  if (c <= kColumnsOfABlock) return run("layernorm_backward", true, 0, c);
  for (int64_t first = 0; first < c; first += kColumnsOfABlock)
    run("layernorm_backward_columns", false, first, std::min(kColumnsOfABlock, c - first));
  run("layernorm_backward_rows", true, 0, 0);
}

}  // namespace

template <class Queue>
void layernorm_backward_on(Queue& queue, const View& dx, bool add_dx, const GradView& dweight,
                           const GradView& dbias, const View& partial, const View& dy,
                           const View& x, const View& weight, const View& mean, const View& rstd,
                           const DroppedCopy& dropped, int threads) {
  const int64_t n = x.shape[0], c = x.shape[1];
  const bool want_sums = dweight.view.defined() || dbias.view.defined();
  const bool drops = dropped.to.defined() && dropped.dropout.p > 0;
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    const BackwardTensors<T, W> io{dx.as<T>(),
                                   dy.as<const T>(),
                                   x.as<const T>(),
                                   weight.as<const W>(),
                                   mean.as<const float>(),
                                   rstd.as<const float>(),
                                   add_dx,
                                   dropped.to.defined() ? dropped.to.as<T>() : nullptr,
                                   drops ? step_state(dropped.state) : nullptr,
                                   dropped.T,
                                   MaskConstants(dropped.dropout)};
    float* const sums = want_sums ? partial.as<float>() : nullptr;
    if (wide_rows<T>(c, {&dx, &dy, &x, &weight, &dropped.to}))
      launch_backward<T, W, kVector<T>>(queue, io, sums, n, c, threads);
    else
      launch_backward<T, W, 1>(queue, io, sums, n, c, threads);
  });
  if (!want_sums) return;
  const auto sums_of = [](const GradView& g) {
    return SumsOverRows{g.view.defined() ? g.view.template as<float>() : nullptr, g.add};
  };
  launch(queue,
         {.blocks = ceil_div(c, int64_t{kWarp}),
          .threads = threads,
          .shared_bytes = threads * int64_t{sizeof(float)},
          .blocks_y = 2},
         "layernorm_backward_chunks", layernorm_backward_chunks_kernel, sums_of(dweight),
         sums_of(dbias), partial.as<const float>(), layernorm_backward_chunks(n), c);
}

template void layernorm_backward_on(simt::Queue&, const View&, bool, const GradView&,
                                    const GradView&, const View&, const View&, const View&,
                                    const View&, const View&, const View&, const DroppedCopy&, int);

}  // namespace snug
