// AVX-512 tiles: 14 x 32 accumulators in 28 of the 32 registers, two for B, the rest for A. The
// fp32 tile multiplies floats; the bf16 tile has the same shape and multiplies pairs, twice the
// work a step.
#include <immintrin.h>

#include <algorithm>

#include "engine/blas/matmul_tile.h"
#include "engine/blas/matmul_tile_full_avx512.h"

#define SNUG_AVX512 __attribute__((target("avx512f")))
#define SNUG_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace snug::blas {
namespace {

// A packed B that comes from memory is asked for this many floats ahead (8 KiB); with 4 to 14 rows
// that reads it a fifth faster. One row leaves the hardware's own prefetching room enough.
constexpr int64_t kAhead = 2048;

inline void prefetch_ahead(const float* b) {
  _mm_prefetch(b + kAhead, _MM_HINT_T0);
  _mm_prefetch(b + kAhead + 16, _MM_HINT_T0);
}

// One step of k.
template <int R>
SNUG_AVX512 __attribute__((always_inline)) inline void add_step(__m512 (&acc)[R][2], const float* a,
                                                                const float* b) {
  const __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    const __m512 x = _mm512_set1_ps(a[r]);
    acc[r][0] = _mm512_fmadd_ps(x, b0, acc[r][0]);
    acc[r][1] = _mm512_fmadd_ps(x, b1, acc[r][1]);
  }
}

// Lines that are wanted soon, a few with every two steps of k: the next panel of B and sums that
// wait into L2, C's place into L1.
struct Asked {
  Asked(const Soon& s, int64_t units)
      : soon(s),
        b_step((s.b_lines + units / 2) / std::max<int64_t>(1, units / 2)),
        c_lines(s.c == nullptr ? 0 : (s.c_bytes + 63) / 64),
        c_step(s.c == nullptr ? 0 : 2 * s.c_rows / units + 1) {}

  void step() {
    for (int64_t i = 0; i < b_step; ++i, ++b_at) _mm_prefetch(soon.b + 16 * b_at, _MM_HINT_T1);
    for (int64_t i = 0; i < c_step && row < soon.c_rows; ++i, ++row)
      for (int64_t l = 0; l < c_lines; ++l)
        _mm_prefetch(soon.c + row * soon.c_stride + 64 * l, _MM_HINT_T0);
  }

  const Soon& soon;
  int64_t b_step, c_lines, c_step, b_at = 0, row = 0;
};

// Two steps of k a turn: the turn's own instructions cost a twentieth where there is one.
template <int R>
SNUG_AVX512 void run_f32(int64_t units, const float* a, const float* b, float* tile, bool start,
                         const Soon& soon) {
  __m512 acc[R][2];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    acc[r][0] = start ? _mm512_setzero_ps() : _mm512_loadu_ps(tile + r * 32);
    acc[r][1] = start ? _mm512_setzero_ps() : _mm512_loadu_ps(tile + r * 32 + 16);
  }
  int64_t u = 0;
  if (soon.b != nullptr) {
    for (int64_t i = 0; soon.waiting != nullptr && i < R * 2; ++i)
      _mm_prefetch(soon.waiting + 16 * i, _MM_HINT_T1);
    for (Asked asked(soon, units); u + 2 <= units; u += 2, a += 2 * R, b += 64) {
      asked.step();
      add_step<R>(acc, a, b);
      add_step<R>(acc, a + R, b + 32);
    }
  } else {
    for (; u + 2 <= units; u += 2, a += 2 * R, b += 64) {
      if (R > 1) prefetch_ahead(b), prefetch_ahead(b + 32);
      add_step<R>(acc, a, b);
      add_step<R>(acc, a + R, b + 32);
    }
  }
  if (u < units) add_step<R>(acc, a, b);
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(tile + r * 32, acc[r][0]);
    _mm512_storeu_ps(tile + r * 32 + 16, acc[r][1]);
  }
}

// A full tile in the middle of a large product: its loop is written out. All else, few rows and few
// k, is the compiler's.
SNUG_AVX512 void run_f32_full(int64_t units, const float* a, const float* b, float* tile,
                              bool start, const Soon& soon) {
  constexpr int64_t kRows = 14;
  const int64_t turns = units / 2;
  if (soon.b == nullptr || turns < kRows) return run_f32<kRows>(units, a, b, tile, start, soon);
  for (int64_t i = 0; soon.waiting != nullptr && i < kRows * 2; ++i)
    _mm_prefetch(soon.waiting + 16 * i, _MM_HINT_T1);
  // A step of less than a line asks for some lines twice, which costs less than to decide.
  run_full_tile(a, b, tile, start,
                {.ahead = reinterpret_cast<const char*>(soon.b),
                 .ahead_step = (soon.b_lines * 64 + turns - 1) / turns,
                 .c = soon.c != nullptr ? soon.c : reinterpret_cast<const char*>(tile),
                 .c_stride = soon.c != nullptr ? soon.c_stride : 0,
                 .parts = kRows,
                 .turns = turns / kRows,
                 .rest = turns % kRows});
  if (units % 2 != 0)
    run_f32<kRows>(1, a + kRows * (units - 1), b + 32 * (units - 1), tile, false, Soon{});
}

template <int R>
SNUG_AVX512_BF16 void run_bf16(int64_t units, const float* a, const float* b, float* tile,
                               bool start, const Soon&) {
  __m512 acc[R][2];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    acc[r][0] = start ? _mm512_setzero_ps() : _mm512_loadu_ps(tile + r * 32);
    acc[r][1] = start ? _mm512_setzero_ps() : _mm512_loadu_ps(tile + r * 32 + 16);
  }
  for (int64_t u = 0; u < units; ++u, a += R, b += 32) {
    if (R > 1) prefetch_ahead(b);
    const __m512bh b0 = (__m512bh)_mm512_loadu_ps(b), b1 = (__m512bh)_mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const __m512bh x = (__m512bh)_mm512_set1_ps(a[r]);
      acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x, b0);
      acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x, b1);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(tile + r * 32, acc[r][0]);
    _mm512_storeu_ps(tile + r * 32 + 16, acc[r][1]);
  }
}

constexpr TileRun kRunF32[14] = {run_f32<1>,  run_f32<2>,  run_f32<3>,  run_f32<4>,  run_f32<5>,
                                 run_f32<6>,  run_f32<7>,  run_f32<8>,  run_f32<9>,  run_f32<10>,
                                 run_f32<11>, run_f32<12>, run_f32<13>, run_f32_full};
constexpr TileRun kRunBf16[14] = {
    run_bf16<1>, run_bf16<2>, run_bf16<3>,  run_bf16<4>,  run_bf16<5>,  run_bf16<6>,  run_bf16<7>,
    run_bf16<8>, run_bf16<9>, run_bf16<10>, run_bf16<11>, run_bf16<12>, run_bf16<13>, run_bf16<14>};
// Its chunk of A (640 KiB) leaves room for two panels of B in an L2 of 1 MiB.
constexpr TileKernel kF32{.rows = 14,
                          .cols = 32,
                          .pairs = false,
                          .run = kRunF32,
                          .chunk = 160 * 1024,
                          .chunk_rows = 210,
                          .asks = true};
// Tall chunks, and B of a product that needs several blocks of K packed whole: the gradients of
// weights gain 2 to 6 % by it.
constexpr TileKernel kBf16{.rows = 14,
                           .cols = 32,
                           .pairs = true,
                           .run = kRunBf16,
                           .chunk = 160 * 1024,
                           .chunk_rows = 280,
                           .copies_b = true};

}  // namespace

const TileKernel& avx512_tile_kernel() {
  return kF32;
}
const TileKernel& avx512_bf16_tile_kernel() {
  return kBf16;
}

}  // namespace snug::blas
