#include <algorithm>

#include "engine/kernels/dispatch.h"
#include "engine/kernels/row_chunks_kernel.h"
#include "layers/ops/layernorm_device.h"
#include "layers/ops/layernorm_dispatch.h"
#include "layers/ops/rmsnorm_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// From the m-th row that is normalised to its first value in x.
struct RowOf {
  int64_t stride, first, count, c;
  __device__ int64_t operator()(int64_t m) const {
    return count == 1 ? m * stride + first : m / count * stride + first + m % count * c;
  }
};

template <class T, class W>
struct RmsTensors {
  T* out;  // y or dx
  const T *dy, *x;
  const W* weight;
  float offset;  // of the weight
  bool add_dx;
  RowOf row_of;
};

// A warp a row, vectors of N; rows past the end are whole warps that leave.
template <class T, class W, int N>
__global__ void rmsnorm_forward_row_per_warp_kernel(RmsTensors<T, W> io, float* rstd, int64_t rows,
                                                    int64_t c, float eps) {
  const int64_t m = block() * warps() + warp();
  if (m >= rows) return;
  const int64_t at = io.row_of(m);
  const T* const x_n = io.x + at;
  T* const y_n = io.out + at;
  float squares = 0.0f;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto v = Pack<T, N>::load(x_n + i);
    for (int k = 0; k < N; ++k) squares += to_f32(v[k]) * to_f32(v[k]);
  }
  const float s = rsqrt(warp_sum(squares) / static_cast<float>(c) + eps);
  if (lane() == 0) rstd[m] = s;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto v = Pack<T, N>::load(x_n + i);
    const auto w = Pack<W, N>::load(io.weight + i);
    Pack<T, N> out;
    for (int k = 0; k < N; ++k) out[k] = from_f32<T>(to_f32(v[k]) * s * (to_f32(w[k]) + io.offset));
    out.store(y_n + i);
  }
}

// dx of one row by a warp. dy and x come from the cache, where the sums over the columns have just
// read them.
template <class T, class W, int N>
__device__ inline void rms_backward_row(const RmsTensors<T, W>& io, float s, int64_t at,
                                        int64_t c) {
  const T *dy_n = io.dy + at, *x_n = io.x + at;
  T* const dx_n = io.out + at;
  float sum = 0.0f;
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto d = Pack<T, N>::load(dy_n + i), v = Pack<T, N>::load(x_n + i);
    const auto w = Pack<W, N>::load(io.weight + i);
    for (int k = 0; k < N; ++k)
      sum += to_f32(d[k]) * (to_f32(w[k]) + io.offset) * (to_f32(v[k]) * s);
  }
  const float mean = warp_sum(sum) / static_cast<float>(c);
  for (int64_t i = lane() * N; i < c; i += kWarp * N) {
    const auto d = Pack<T, N>::load(dy_n + i), v = Pack<T, N>::load(x_n + i);
    const auto w = Pack<W, N>::load(io.weight + i);
    Pack<T, N> out{};
    if (io.add_dx) out = Pack<T, N>::load(dx_n + i);
    for (int k = 0; k < N; ++k) {
      const float g = to_f32(d[k]) * (to_f32(w[k]) + io.offset);
      const float value = s * (g - to_f32(v[k]) * s * mean);
      out[k] = from_f32<T>(io.add_dx ? to_f32(out[k]) + value : value);
    }
    out.store(dx_n + i);
  }
}

// A block for a chunk of rows, warps() of them at a time: first the sums over rows of `columns`
// columns from `first` on (0: none), then, if `rows_too`, dx, a warp a row. dx may be dy, so a
// barrier is between. partial[chunk][column].
template <class T, class W, int N>
__global__ void rmsnorm_backward_kernel(RmsTensors<T, W> io, const float* rstd, float* partial,
                                        bool rows_too, int64_t first, int columns, int slots,
                                        int64_t rows, int64_t chunk_rows, int64_t c) {
  const ColumnSums<N, 1> sums{dynamic_smem<float>(), first, columns, slots};
  const int items = sums.vectors() * slots;
  for (int item = thread(); item < items; item += threads()) sums.store(item, 0, {});
  const int64_t begin = block() * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  for (int64_t base = begin; base < end; base += warps()) {
    const int64_t stop = base + warps() < end ? base + warps() : end;
    for (int item = thread(); item < items; item += threads()) {
      const int64_t column = first + item % sums.vectors() * N;
      auto sum = sums.load(item, 0);
#pragma unroll 4
      for (int64_t m = base + item / sums.vectors(); m < stop; m += slots) {
        const int64_t at = io.row_of(m) + column;
        const auto d = Pack<T, N>::load(io.dy + at), v = Pack<T, N>::load(io.x + at);
        const float s = rstd[m];
        for (int k = 0; k < N; ++k) sum[k] += to_f32(d[k]) * (to_f32(v[k]) * s);
      }
      sums.store(item, 0, sum);
    }
    sync_threads();
    const int64_t m = base + warp();
    if (rows_too && m < end) rms_backward_row<T, W, N>(io, rstd[m], io.row_of(m), c);
  }
  if (columns == 0) return;
  sync_threads();
  for (int column = thread(); column < columns; column += threads()) {
    float sum = 0.0f;
    for (int slot = 0; slot < slots; ++slot)
      sum += sums.sums[sums.place(slot * sums.vectors() + column / N, 0, column % N)];
    partial[block() * c + first + column] = sum;
  }
}

template <class T, class W, int N, class Queue>
void launch_backward(Queue& queue, const RmsTensors<T, W>& io, const float* rstd, float* partial,
                     int64_t rows, int64_t c, int threads) {
  const auto run = [&](const char* name, bool rows_too, int64_t first, int64_t columns) {
    const auto vectors = static_cast<int>(columns / N);
    const int slots = vectors == 0 ? 1 : std::clamp(threads / vectors, 1, threads / kWarp);
    launch(queue,
           {.blocks = rmsnorm_backward_chunks(rows),
            .threads = threads,
            .shared_bytes = slots * columns * int64_t{sizeof(float)}},
           name, rmsnorm_backward_kernel<T, W, N>, io, rstd, partial, rows_too, first,
           static_cast<int>(columns), slots, rows, layernorm_backward_chunk_rows(rows), c);
  };
  if (!partial) return run("rmsnorm_backward", true, 0, 0);
  if (c <= kColumnsOfABlock) return run("rmsnorm_backward", true, 0, c);
  for (int64_t first = 0; first < c; first += kColumnsOfABlock)
    run("rmsnorm_backward_columns", false, first, std::min(kColumnsOfABlock, c - first));
  run("rmsnorm_backward_rows", true, 0, 0);
}

RowOf row_of(const View& x, const HeadRows& heads, int64_t c) {
  if (heads.columns > 0) return {x.shape[1], heads.column, 1, c};
  if (heads.count == heads.group) return {c, 0, 1, c};
  return {heads.group * c, heads.first * c, heads.count, c};
}

// Whether vectors of a row begin where rows do.
template <class T>
bool wide(const RowOf& row_of, int64_t c, std::initializer_list<const View*> views) {
  return wide_rows<T>(c, views) && row_of.stride % kVector<T> == 0 &&
         row_of.first % kVector<T> == 0;
}

}  // namespace

template <class Queue>
void rmsnorm_forward_on(Queue& queue, const View& y, const View& rstd, const View& x,
                        const View& weight, float eps, bool unit_offset, const HeadRows& heads,
                        int threads) {
  const int64_t m = rstd.shape[0], c = weight.shape[0];
  const RowOf rows = row_of(x, heads, c);
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    const RmsTensors<T, W> io{
        y.as<T>(), nullptr, x.as<const T>(), weight.as<const W>(), unit_offset ? 1.0f : 0.0f,
        false,     rows};
    launch(queue, {.blocks = ceil_div(m, int64_t{threads / kWarp}), .threads = threads},
           "rmsnorm_forward_row_per_warp",
           wide<T>(rows, c, {&y, &x, &weight})
               ? rmsnorm_forward_row_per_warp_kernel<T, W, kVector<T>>
               : rmsnorm_forward_row_per_warp_kernel<T, W, 1>,
           io, rstd.as<float>(), m, c, eps);
  });
}

template <class Queue>
void rmsnorm_backward_on(Queue& queue, const View& dx, bool add_dx, const GradView& dweight,
                         const View& partial, const View& dy, const View& x, const View& weight,
                         const View& rstd, bool unit_offset, const HeadRows& heads, int threads) {
  const int64_t m = rstd.shape[0], c = weight.shape[0];
  const RowOf rows = row_of(x, heads, c);
  const bool want_weight = dweight.view.defined();
  dispatch_norm(x, weight, [&](auto tag, auto weight_tag) {
    using T = decltype(tag);
    using W = decltype(weight_tag);
    const RmsTensors<T, W> io{dx.as<T>(),
                              dy.as<const T>(),
                              x.as<const T>(),
                              weight.as<const W>(),
                              unit_offset ? 1.0f : 0.0f,
                              add_dx,
                              rows};
    float* const sums = want_weight ? partial.as<float>() : nullptr;
    if (wide<T>(rows, c, {&dx, &dy, &x, &weight}))
      launch_backward<T, W, kVector<T>>(queue, io, rstd.as<const float>(), sums, m, c, threads);
    else
      launch_backward<T, W, 1>(queue, io, rstd.as<const float>(), sums, m, c, threads);
  });
  if (want_weight)
    launch_add_chunks(queue, "rmsnorm_backward_chunks", dweight.view.as<float>(), dweight.add,
                      partial.as<const float>(), rmsnorm_backward_chunks(m), c, c, threads);
}

template void rmsnorm_forward_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                 float, bool, const HeadRows&, int);
template void rmsnorm_backward_on(simt::Queue&, const View&, bool, const GradView&, const View&,
                                  const View&, const View&, const View&, const View&, bool,
                                  const HeadRows&, int);

}  // namespace snug
