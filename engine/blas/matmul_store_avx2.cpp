// What store_tile does for whole rows of sixteen columns, in registers; the same bits but for what
// a NaN carries in f16.
#include <immintrin.h>

#include "engine/blas/matmul_tile.h"

namespace snug::blas {
namespace {

#include "engine/kernels/wide_avx2.h"

template <class T>
void store_rows(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                int64_t rows, bool past_caches) {
  alignas(64) float bias[16] = {}, v[kMaxTileRows][16];
  if (p.bias != nullptr)
    for (int64_t j = 0; j < 16; ++j) bias[j] = value_at(p.bias, p.bias_dtype, n0 + j);
  const V alpha = set1(p.alpha), b = load(bias);
  T* to = p.c == nullptr ? nullptr : static_cast<T*>(p.c) + m0 * p.ldc + n0;
  for (int64_t i = 0; i < rows; ++i, tile += ld) {
    V x = alpha * load(tile);
    if (p.bias != nullptr) x = x + b;
    if (p.accumulate) x = x + load(to);
    if (p.finish.tile != nullptr)
      store(v[i], x);
    else if (past_caches)
      stream(to, x);
    else
      store(to, x);
    if (to != nullptr) to += p.ldc;
  }
  if (p.finish.tile != nullptr) p.finish.tile(p.finish.context, v[0], 16, m0, n0, rows, 16);
}

}  // namespace

bool store_tile_avx2(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                     int64_t rows, int64_t cols) {
  if (cols != 16) return false;
  if (p.c_dtype == DType::f32)
    store_rows<float>(p, tile, ld, m0, n0, rows, streams_c(p));
  else if (p.c_dtype == DType::bf16)
    store_rows<bf16>(p, tile, ld, m0, n0, rows, false);
  else
    store_rows<f16>(p, tile, ld, m0, n0, rows, false);
  return true;
}

}  // namespace snug::blas
