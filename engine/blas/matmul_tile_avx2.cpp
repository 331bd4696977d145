// AVX2 + FMA tile: 6 x 16 accumulators in twelve of the sixteen registers.
#include <immintrin.h>

#include "engine/blas/matmul_tile.h"

namespace snug::blas {
namespace {

// One step of k.
template <int R>
__attribute__((always_inline)) inline void add_step(__m256 (&acc)[R][2], const float* a,
                                                    const float* b) {
  const __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const __m256 x = _mm256_broadcast_ss(a + r);
    acc[r][0] = _mm256_fmadd_ps(x, b0, acc[r][0]);
    acc[r][1] = _mm256_fmadd_ps(x, b1, acc[r][1]);
  }
}

// C's place and sums that wait, each at most two lines a row.
template <int R>
inline void ask_for_tile(const Soon& soon) {
  const char* c = soon.c;
  for (int64_t i = 0; c != nullptr && i < soon.c_rows; ++i, c += soon.c_stride) {
    _mm_prefetch(c, _MM_HINT_T0);
    _mm_prefetch(c + soon.c_bytes - 1, _MM_HINT_T0);
  }
  for (int i = 0; soon.waiting != nullptr && i < R; ++i)
    _mm_prefetch(soon.waiting + 16 * i, _MM_HINT_T1);
}

// Four steps of k a turn, and with every turn a line of the next panel of B into L2: where a core
// shares its caches with another one's work, what is asked for in time is what keeps its rate. A
// step of less than a line asks for some lines twice, which costs less than to decide.
template <int R>
void run(int64_t units, const float* a, const float* b, float* tile, bool start, const Soon& soon) {
  constexpr int64_t kTurn = 4;
  __m256 acc[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    acc[r][0] = start ? _mm256_setzero_ps() : _mm256_loadu_ps(tile + r * 16);
    acc[r][1] = start ? _mm256_setzero_ps() : _mm256_loadu_ps(tile + r * 16 + 8);
  }
  ask_for_tile<R>(soon);
  const char* ahead = reinterpret_cast<const char*>(soon.b != nullptr ? soon.b : tile);
  const int64_t turns = units / kTurn;
  const int64_t ahead_step = turns > 0 ? (soon.b_lines * 64 + turns - 1) / turns : 0;
  for (int64_t t = 0; t < turns; ++t, a += kTurn * R, b += kTurn * 16, ahead += ahead_step) {
    _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 4
    for (int64_t k = 0; k < kTurn; ++k) add_step<R>(acc, a + k * R, b + k * 16);
  }
  for (int64_t u = turns * kTurn; u < units; ++u, a += R, b += 16) add_step<R>(acc, a, b);
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    _mm256_storeu_ps(tile + r * 16, acc[r][0]);
    _mm256_storeu_ps(tile + r * 16 + 8, acc[r][1]);
  }
}

constexpr TileRun kRun[6] = {run<1>, run<2>, run<3>, run<4>, run<5>, run<6>};
constexpr TileKernel kKernel{.rows = 6, .cols = 16, .pairs = false, .run = kRun, .asks = true};

}  // namespace

const TileKernel& avx2_tile_kernel() {
  return kKernel;
}

}  // namespace snug::blas
