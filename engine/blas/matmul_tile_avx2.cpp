// AVX2 + FMA tile: 6 x 16 accumulators in twelve of the sixteen registers.
#include <immintrin.h>

#include "engine/blas/matmul_tile.h"

namespace snug::blas {
namespace {

template <int R>
void run(int64_t units, const float* a, const float* b, float* tile, bool start, const Soon&) {
  __m256 acc[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    acc[r][0] = start ? _mm256_setzero_ps() : _mm256_loadu_ps(tile + r * 16);
    acc[r][1] = start ? _mm256_setzero_ps() : _mm256_loadu_ps(tile + r * 16 + 8);
  }
  for (int64_t u = 0; u < units; ++u, a += R, b += 16) {
    const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r);
      acc[r][0] = _mm256_fmadd_ps(x, b0, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(x, b1, acc[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    _mm256_storeu_ps(tile + r * 16, acc[r][0]);
    _mm256_storeu_ps(tile + r * 16 + 8, acc[r][1]);
  }
}

constexpr TileRun kRun[6] = {run<1>, run<2>, run<3>, run<4>, run<5>, run<6>};
constexpr TileKernel kKernel{6, 16, false, kRun};

}  // namespace

const TileKernel& avx2_tile_kernel() {
  return kKernel;
}

}  // namespace snug::blas
