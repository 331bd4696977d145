// Rows of A as the tiles of AMX want them, with 512-bit registers.
#include <algorithm>

#include "engine/blas/matmul_pack.h"
#include "engine/blas/turn_avx512.h"
#include "engine/core/isa.h"

namespace snug::blas {
namespace {

constexpr int64_t kUnits = 16, kStepK = 32;  // a step: 16 units of 4 bytes, 32 of k

SNUG_AVX512 inline __m512i load32(const bf16* p, int64_t count) {
  const auto m =
      static_cast<__mmask32>(count >= 32 ? ~0ull : (1ull << std::max<int64_t>(count, 0)) - 1);
  return _mm512_maskz_loadu_epi16(m, p);
}

// One panel whose neighbours in memory are neighbours in k. A row is read in runs of up to kRun
// steps (1 KiB): 64 bytes of each row in turn would keep as many pages open as there are rows,
// more than the hardware follows; the same run of the next row is asked for meanwhile.
constexpr int64_t kRun = 16;

SNUG_AVX512 void copy_rows(const bf16* src, int64_t lane_stride, int64_t lanes, int64_t panel_lanes,
                           int64_t kc, int64_t steps, float* out) {
  for (int64_t s0 = 0; s0 < steps; s0 += kRun) {
    const int64_t s1 = std::min(s0 + kRun, steps);
    for (int64_t l = 0; l < lanes; ++l) {
      const bf16* row = src + l * lane_stride;
      for (int64_t s = s0; s < s1; ++s) {
        _mm_prefetch(row + 2 * lane_stride + s * kStepK, _MM_HINT_T0);
        _mm512_storeu_si512(out + (s * panel_lanes + l) * kUnits,
                            load32(row + s * kStepK, kc - s * kStepK));
      }
    }
    for (int64_t l = lanes; l < panel_lanes; ++l)
      for (int64_t s = s0; s < s1; ++s)
        _mm512_storeu_si512(out + (s * panel_lanes + l) * kUnits, _mm512_setzero_si512());
  }
}

// One step of up to 32 lanes of a panel whose neighbours in memory are lanes. Pairs of rows of k
// are woven: within each quarter of a register lanes 0..3 and 4..7 of its eight come apart, so the
// two registers of a pair hold lanes 0-3, 8-11, 16-19, 24-27 and the others. count: of k that there
// are.
SNUG_AVX512 void turn_lanes(const bf16* src, int64_t k_stride, int64_t count, int64_t lanes,
                            int64_t panel_lanes, float* out) {
  const auto m = static_cast<__mmask32>((1ull << lanes) - 1);
  __m512 low[16], high[16];
#pragma GCC unroll 16
  for (int64_t u = 0; u < 16; ++u) {
    const bf16 *even = src + 2 * u * k_stride, *odd = even + k_stride;
    const __m512i a = 2 * u < count ? _mm512_maskz_loadu_epi16(m, even) : _mm512_setzero_si512();
    const __m512i b = 2 * u + 1 < count ? _mm512_maskz_loadu_epi16(m, odd) : _mm512_setzero_si512();
    low[u] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(a, b));
    high[u] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(a, b));
  }
  transpose16(low);
  transpose16(high);
  for (int64_t l = 0; l < panel_lanes; ++l) {
    const int64_t place = l / 8 * 4 + l % 4;
    _mm512_storeu_ps(out + l * kUnits, l % 8 < 4 ? low[place] : high[place]);
  }
}

}  // namespace

bool pack_row_tiles_avx512(const PackSource& s, int64_t lanes, int64_t kc, int64_t units,
                           int64_t width, int64_t lane_step, float* out) {
  if (!use_avx512() || lane_step != 16 || width != 32) return false;
  const auto* src = static_cast<const bf16*>(s.data);
  const int64_t steps = units / kUnits;
  if (s.k_stride == 1) {
    for (int64_t p0 = 0; p0 < lanes; p0 += width) {
      const int64_t here = std::min(width, lanes - p0), panel = (here + 15) / 16 * 16;
      copy_rows(src + p0 * s.lane_stride, s.lane_stride, here, panel, kc, steps, out + p0 * units);
    }
    return true;
  }
  if (s.lane_stride != 1) return false;
  // Step by step over all panels: the rows of k are read in runs as long as the chunk is wide. The
  // hardware finds these by itself; lines that are asked for wait for the places a core has for
  // them, and are a quarter slower.
  const int64_t panels = (lanes + width - 1) / width;
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t p0 = p * width, here = std::min(width, lanes - p0);
      const int64_t panel = (here + 15) / 16 * 16, k = t * kStepK;
      turn_lanes(src + k * s.k_stride + p0, s.k_stride, kc - k, here, panel,
                 out + p0 * units + t * panel * kUnits);
    }
  return true;
}

}  // namespace snug::blas
