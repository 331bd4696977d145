#include "engine/core/units.h"
#include "engine/kernels/dispatch.h"
#include "engine/kernels/row_chunks.h"
#include "engine/kernels/row_chunks_kernel.h"
#include "engine/simt/simt.h"
#include "layers/ops/column_scale_simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// One element a thread.
template <class T>
__global__ void column_scale_kernel(T* y, const T* v, const float* g, const T* b, int64_t n,
                                    int64_t columns) {
  const int64_t i = block() * threads() + thread();
  if (i >= n) return;
  const int64_t c = i % columns;
  const float scaled = g[c] * to_f32(v[i]);
  y[i] = from_f32<T>(b ? scaled + to_f32(b[c]) : scaled);
}

// partial[chunk][column]: the sum over the rows of a chunk. A block takes a tile of 32 columns, a
// lane one of them, a warp every warps()-th row.
template <class T>
__global__ void column_scale_sum_kernel(float* partial, const T* dy, const T* v, int64_t rows,
                                        int64_t chunk_rows, int64_t c) {
  const auto parts = dynamic_smem<float>();  // (warps, 32)
  const int64_t first = block() * kWarp, column = first + lane();
  const int64_t begin = block_y() * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sum = 0.0f;
  if (column < c)
    for (int64_t row = begin + warp(); row < end; row += warps())
      sum += to_f32(dy[row * c + column]) * to_f32(v[row * c + column]);
  parts[warp() * kWarp + lane()] = sum;
  sync_threads();
  add_warps(parts, 1, kWarp, c - first, partial + block_y() * c + first, c);
}

}  // namespace

template <class Queue>
void column_scale_on(Queue& queue, const View& y, const View& v, const View& g, const View& b,
                     int threads) {
  const int64_t n = v.elements();
  dispatch_float(v, "column_scale: v", [&](auto tag) {
    using T = decltype(tag);
    launch(queue, {.blocks = ceil_div(n, int64_t{threads}), .threads = threads}, "column_scale",
           column_scale_kernel<T>, y.as<T>(), v.as<const T>(), g.as<const float>(),
           b.defined() ? b.as<const T>() : static_cast<const T*>(nullptr), n, v.shape[1]);
  });
}

template <class Queue>
void column_scale_sum_on(Queue& queue, const View& dg, const View& partial, const View& dy,
                         const View& v, int threads) {
  const int64_t n = dy.shape[0], c = dy.shape[1], chunks = row_chunks(n);
  dispatch_float(dy, "column_scale: dy", [&](auto tag) {
    using T = decltype(tag);
    launch(queue,
           {.blocks = ceil_div(c, int64_t{kWarp}),
            .threads = threads,
            .shared_bytes = threads * int64_t{sizeof(float)},
            .blocks_y = chunks},
           "column_scale_sum", column_scale_sum_kernel<T>, partial.as<float>(), dy.as<const T>(),
           v.as<const T>(), n, row_chunk_rows(n), c);
  });
  launch_add_chunks(queue, "column_scale_chunks", dg.as<float>(), false, partial.as<const float>(),
                    chunks, c, c, threads);
}

template void column_scale_on(simt::Queue&, const View&, const View&, const View&, const View&,
                              int);
template void column_scale_sum_on(simt::Queue&, const View&, const View&, const View&, const View&,
                                  int);

}  // namespace snug
