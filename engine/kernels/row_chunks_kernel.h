// Device side of row_chunks.h: the sums of a block's warps, and the sum over the chunks.
#pragma once

#include "engine/core/units.h"
#include "engine/simt/simt.h"

namespace snug {
inline namespace SIMT_SIDE {

// out[k stride + j] = the sum over the warps of the block, in order, of parts[warp][k][j]; parts is
// (warps, kinds, tile), and only j below `columns` count.
__device__ inline void add_warps(const simt::Shared<float>& parts, int kinds, int tile,
                                 int64_t columns, float* out, int64_t stride) {
  for (int j = simt::thread(); j < kinds * tile; j += simt::threads()) {
    if (j % tile >= columns) continue;
    float sum = 0.0f;
    for (int w = 0; w < simt::warps(); ++w) sum += parts[w * kinds * tile + j];
    out[j / tile * stride + j % tile] = sum;
  }
}

// out[column] = or += the sum over the chunks of partial[chunk][column], by a block of the grid's
// x. A lane a column, a warp every warps()-th chunk.
template <class F>
__device__ inline void add_chunks_of_columns(F* out, bool add, const F* partial, int64_t chunks,
                                             int64_t stride, int64_t columns) {
  const auto parts = simt::dynamic_smem<F>();  // (warps, 32)
  const int64_t column = simt::block() * simt::kWarp + simt::lane();
  F sum = 0;
  if (column < columns)
    for (int64_t k = simt::warp(); k < chunks; k += simt::warps())
      sum += partial[k * stride + column];
  parts[simt::warp() * simt::kWarp + simt::lane()] = sum;
  simt::sync_threads();
  if (simt::warp() > 0 || column >= columns) return;
  F total = add ? out[column] : F(0);
  for (int w = 0; w < simt::warps(); ++w) total += parts[w * simt::kWarp + simt::lane()];
  out[column] = total;
}

template <class F>
__global__ void add_chunks_kernel(F* out, bool add, const F* partial, int64_t chunks,
                                  int64_t stride, int64_t columns) {
  add_chunks_of_columns(out, add, partial, chunks, stride, columns);
}

template <class Queue>
void launch_add_chunks(Queue& queue, const char* name, float* out, bool add, const float* partial,
                       int64_t chunks, int64_t stride, int64_t columns, int threads) {
  simt::launch(queue,
               {.blocks = ceil_div(columns, int64_t{simt::kWarp}),
                .threads = threads,
                .shared_bytes = threads * int64_t{sizeof(float)}},
               name, add_chunks_kernel<float>, out, add, partial, chunks, stride, columns);
}

}  // namespace SIMT_SIDE
}  // namespace snug
