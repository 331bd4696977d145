// Compiled for AVX-512 whatever the flags of the build: called only where the CPU has it. Headers
// come before the switch, so that nothing shared with other files is compiled for it.
#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "quant/map_lines.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,prefer-vector-width=512")
#endif

namespace snug {
namespace {

#include "quant/map_avx512.h"

}  // namespace

int64_t map_entries_avx512(const MapLines& lines, float factor, const float* x, int64_t n,
                           uint8_t* codes) {
  const MapEncoder encoder(lines);
  const __m512 by = _mm512_set1_ps(factor);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) encoder.encode64(x + i, by, codes + i);
  return i;
}

int64_t map_values_avx512(const MapLines& lines, float scale, const uint8_t* codes, int64_t n,
                          float* y) {
  const MapDecoder decoder(lines);
  const __m512 by = _mm512_set1_ps(scale);
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) decoder.decode64(codes + i, by, y + i);
  return i;
}

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
