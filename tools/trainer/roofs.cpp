#include "tools/trainer/roofs.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/core/parallel.h"
#include "engine/memory/context.h"

namespace snug {
namespace {

constexpr int kRounds = 200000;

// Twelve independent accumulators hide the latency of the units; the sum keeps them alive.
float fma_avx2() {
  __m256 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int r = 0; r < kRounds; ++r)
    for (int i = 0; i < 12; ++i) acc[i] = _mm256_fmadd_ps(acc[i], a, b);
  __m256 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm256_add_ps(sum, acc[i]);
  return _mm256_cvtss_f32(sum);
}

__attribute__((target("avx512f"))) float fma_avx512() {
  __m512 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int r = 0; r < kRounds; ++r)
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_fmadd_ps(acc[i], a, b);
  __m512 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return _mm512_cvtss_f32(sum);
}

__attribute__((target("avx512f,avx512bf16"))) float dot_bf16() {
  __m512 acc[12];
  for (int i = 0; i < 12; ++i) acc[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.5f));
  const __m512bh b = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.001f), _mm512_set1_ps(0.001f));
  for (int r = 0; r < kRounds; ++r)
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], a, b);
  __m512 sum = acc[0];
  for (int i = 1; i < 12; ++i) sum = _mm512_add_ps(sum, acc[i]);
  return _mm512_cvtss_f32(sum);
}

template <class F>
double best_rate(int threads, double work_per_call, F&& call) {
  double best = 0;
  volatile float sink = 0;
  for (int repeat = 0; repeat < 8; ++repeat) {
    const double started = monotonic_seconds();
    parallel_for(threads, threads, [&](int64_t) { sink = call(); });
    best = std::max(best, work_per_call * threads / (monotonic_seconds() - started));
  }
  (void)sink;
  return best;
}

}  // namespace

Roofs measure_roofs(int threads) {
  Roofs roofs;
  const bool wide = __builtin_cpu_supports("avx512f");
  const double lanes = wide ? 16 : 8;
  const double fma = 2.0 * 12 * kRounds * lanes;
  roofs.fp32_flops = wide ? best_rate(threads, fma, fma_avx512) : best_rate(threads, fma, fma_avx2);
  if (__builtin_cpu_supports("avx512bf16"))
    roofs.bf16_flops = best_rate(threads, 2 * fma, dot_bf16);

  constexpr int64_t kBytes = int64_t{64} << 20;
  const std::unique_ptr<char[]> from(new char[kBytes]), to(new char[kBytes]);
  std::memset(from.get(), 1, kBytes);
  std::memset(to.get(), 1, kBytes);
  for (int repeat = 0; repeat < 8; ++repeat) {
    const double started = monotonic_seconds();
    parallel_for(threads, threads, [&](int64_t t) {
      const int64_t part = kBytes / threads;
      std::memcpy(to.get() + t * part, from.get() + t * part, static_cast<size_t>(part));
    });
    roofs.copy_bytes = std::max(roofs.copy_bytes, 2.0 * kBytes / (monotonic_seconds() - started));
  }
  return roofs;
}

}  // namespace snug
