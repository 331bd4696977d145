#include "engine/blas/matmul_simt.h"
#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/simt/simt.h"

namespace snug {
namespace {

using namespace simt;  // NOLINT: the words of a kernel

// A block makes a tile of C of 64 x 64 from steps of 16 k. Threads own micro-tiles of 4 x 4: rows
// and columns next to each other, so that a step of k reads two vectors for 16 products.
constexpr int kTile = 64, kDepth = 16, kMicro = 4;
constexpr int kMicros = (kTile / kMicro) * (kTile / kMicro);
constexpr int kRow = kTile + 4;  // of shared memory, padded against conflicts of banks

__device__ inline float load_as_f32(const void* data, DType t, int64_t i) {
  if (t == DType::f32) return static_cast<const float*>(data)[i];
  if (t == DType::bf16) return to_f32(static_cast<const bf16*>(data)[i]);
  return to_f32(static_cast<const f16*>(data)[i]);
}

__device__ inline void store_from_f32(void* data, DType t, int64_t i, float v) {
  if (t == DType::f32)
    static_cast<float*>(data)[i] = v;
  else if (t == DType::bf16)
    static_cast<bf16*>(data)[i] = from_f32<bf16>(v);
  else
    static_cast<f16*>(data)[i] = from_f32<f16>(v);
}

// tile[k][j] = m(j along `extent`, k along the depth), zeros outside. Neighbouring threads read
// neighbours in memory, whichever way those lie.
__device__ inline void load_tile(const Shared<float>& tile, const MatrixView& m,
                                 int64_t extent_stride, int64_t depth_stride, int64_t first,
                                 int64_t extent, int64_t first_k, int64_t depth) {
  const bool along = extent_stride == 1;
  for (int i = thread(); i < kTile * kDepth; i += threads()) {
    const int j = along ? i % kTile : i / kDepth, k = along ? i / kTile : i % kDepth;
    float v = 0.0f;
    if (first + j < extent && first_k + k < depth)
      v = load_as_f32(m.data, m.dtype, (first + j) * extent_stride + (first_k + k) * depth_stride);
    tile[k * kRow + j] = v;
  }
}

__device__ inline void store_micro(const MatmulProblem& p, const float (&sum)[kMicro][kMicro],
                                   int64_t row, int64_t column) {
  for (int i = 0; i < kMicro; ++i)
    for (int j = 0; j < kMicro; ++j) {
      if (row + i >= p.M || column + j >= p.N) continue;
      const int64_t at = (row + i) * p.ldc + column + j;
      float v = sum[i][j] * p.alpha;
      if (p.bias) v += load_as_f32(p.bias, p.bias_dtype, column + j);
      if (p.accumulate) v += load_as_f32(p.c, p.c_dtype, at);
      store_from_f32(p.c, p.c_dtype, at, v);
    }
}

// kOwn: micro-tiles a thread has.
template <int kOwn>
__global__ void matmul_kernel(MatmulProblem p) {
  SHARED_ARRAY(float, a_tile, kDepth* kRow);
  SHARED_ARRAY(float, b_tile, kDepth* kRow);
  const int64_t columns = (p.N + kTile - 1) / kTile;
  const int64_t row0 = block() / columns * kTile, column0 = block() % columns * kTile;
  float sum[kOwn][kMicro][kMicro] = {};
  for (int64_t k0 = 0; k0 < p.K; k0 += kDepth) {
    if (k0 > 0) sync_threads();
    load_tile(a_tile, p.a, p.a.row_stride, p.a.col_stride, row0, p.M, k0, p.K);
    load_tile(b_tile, p.b, p.b.col_stride, p.b.row_stride, column0, p.N, k0, p.K);
    sync_threads();
    const int depth = static_cast<int>(p.K - k0 < kDepth ? p.K - k0 : kDepth);
// Unrolled, here and below: the sums stay in registers.
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int micro = own * threads() + thread();
      const int row = micro / (kTile / kMicro) * kMicro, column = micro % (kTile / kMicro) * kMicro;
      if (row0 + row >= p.M || column0 + column >= p.N) continue;
      for (int k = 0; k < depth; ++k) {
        const auto a = Pack<float, kMicro>::load(a_tile, k * kRow + row);
        const auto b = Pack<float, kMicro>::load(b_tile, k * kRow + column);
        for (int i = 0; i < kMicro; ++i)
          for (int j = 0; j < kMicro; ++j) sum[own][i][j] = fma(a[i], b[j], sum[own][i][j]);
      }
    }
  }
#pragma unroll
  for (int own = 0; own < kOwn; ++own) {
    const int micro = own * threads() + thread();
    store_micro(p, sum[own], row0 + micro / (kTile / kMicro) * kMicro,
                column0 + micro % (kTile / kMicro) * kMicro);
  }
}

}  // namespace

template <class Queue>
void matmul_on(Queue& queue, const MatmulProblem& p, int threads) {
  if (p.finish.tile || p.finish.rows || p.b_packed)
    fail(ErrorCode::unsupported, "a plain product for a kernel",
         p.b_packed ? "a packed B" : "work to do on finished tiles",
         "run what follows the product as an op of its own, on B as it is");
  const auto run = [&](auto kernel) {
    launch(queue,
           {.blocks = ceil_div(p.N, int64_t{kTile}) * ceil_div(p.M, int64_t{kTile}),
            .threads = threads},
           "matmul", kernel, p);
  };
  if (threads * 8 == kMicros)
    run(matmul_kernel<8>);
  else if (threads * 4 == kMicros)
    run(matmul_kernel<4>);
  else if (threads * 2 == kMicros)
    run(matmul_kernel<2>);
  else if (threads == kMicros)
    run(matmul_kernel<1>);
  else
    fail(ErrorCode::unsupported, "blocks of 32, 64, 128 or 256 threads for a product",
         std::to_string(threads), "use 256");
}

template void matmul_on(simt::Queue&, const MatmulProblem&, int);

}  // namespace snug
