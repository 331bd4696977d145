// Packing with 512-bit registers: a lane group is sixteen lanes, so a panel of A is one group and a
// panel of B two, and every line of the source is read once, whole.
#include <algorithm>

#include "engine/blas/matmul_pack.h"
#include "engine/blas/turn_avx512.h"
#include "engine/core/isa.h"

namespace snug::blas {
namespace {

// Up to sixteen neighbouring elements, as units; what the mask leaves out is not read, and zero.
SNUG_AVX512 inline __m512 load16(const float* p, __mmask16 m) {
  return _mm512_maskz_loadu_ps(m, p);
}
SNUG_AVX512 inline __m512 load16(const bf16* p, __mmask16 m) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
SNUG_AVX512 inline __m512 load16(const f16* p, __mmask16 m) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, p));
}

// Neighbours in memory are neighbours in k. A pair of bf16 moves as one float, never interpreted.
template <class T>
SNUG_AVX512 void turn(const char* src, int64_t lane_bytes, int64_t lanes, int64_t units,
                      int64_t width, float* out) {
  for (int64_t l0 = 0; l0 < width; l0 += 16) {
    const int64_t there = std::clamp<int64_t>(lanes - l0, 0, 16);
    const __mmask16 to = mask_of(width - l0);
    const char* row = src + l0 * lane_bytes;
    for (int64_t u = 0; u < units; u += 16) {
      const __mmask16 from = mask_of(units - u);
      __m512 r[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; ++i) {
        const char* at = row + i * lane_bytes + u * static_cast<int64_t>(sizeof(T));
        r[i] = i < there ? load16(reinterpret_cast<const T*>(at), from) : _mm512_setzero_ps();
        // The same place of the next lanes: short rows give the hardware no time to notice.
        _mm_prefetch(at + 16 * lane_bytes, _MM_HINT_T0);
      }
      transpose16(r);
      float* at = out + u * width + l0;
      const int64_t count = std::min<int64_t>(16, units - u);
      for (int64_t i = 0; i < count; ++i) _mm512_mask_storeu_ps(at + i * width, to, r[i]);
    }
  }
}

// The k range is walked in strips so that a strip of every panel is written while the source rows,
// which are long and far apart, are still in the nearest cache; the rows of the next strip are
// asked for meanwhile.
constexpr int64_t kStrip = 8;

template <class T>
SNUG_AVX512 void copy(const T* src, int64_t k_stride, int64_t lanes, int64_t units, int64_t width,
                      int64_t panel_stride, bool pad, float* out) {
  for (int64_t u0 = 0; u0 < units; u0 += kStrip) {
    const int64_t u1 = std::min(u0 + kStrip, units);
    for (int64_t p0 = 0, panel = 0; p0 < lanes; p0 += width, ++panel) {
      const int64_t here = std::min(width, lanes - p0), wide = pad ? width : here;
      for (int64_t l0 = 0; l0 < wide; l0 += 16) {
        const __mmask16 from = mask_of(here - l0), to = mask_of(wide - l0);
        float* at = out + panel * panel_stride + l0;
        for (int64_t u = u0; u < u1; ++u) {
          const T* row = src + u * k_stride + p0 + l0;
          _mm_prefetch(row + kStrip * k_stride, _MM_HINT_T0);
          _mm512_mask_storeu_ps(at + u * wide, to, load16(row, from));
        }
      }
    }
  }
}

// 32 lanes of a unit are a line of each of two rows of k; their words side by side are two lines.
SNUG_AVX512 inline void weave_lines(const bf16* even, const bf16* odd, float* out) {
  const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                         8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, first, b));
  _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(a, second, b));
}

SNUG_AVX512 void weave(const bf16* src, int64_t k_stride, int64_t lanes, int64_t kc, int64_t width,
                       int64_t panel_stride, bool pad, float* out) {
  const int64_t units = (kc + 1) / 2, whole = kc / 2;
  for (int64_t u0 = 0; u0 < units; u0 += kStrip) {
    const int64_t u1 = std::min(u0 + kStrip, units), full = std::min(u1, whole);
    for (int64_t p0 = 0, panel = 0; p0 < lanes; p0 += width, ++panel) {
      const int64_t here = std::min(width, lanes - p0), wide = pad ? width : here;
      for (int64_t u = u0; u < full; ++u) {
        const bf16* even = src + p0 + 2 * (u + kStrip) * k_stride;
        _mm_prefetch(even, _MM_HINT_T0);
        _mm_prefetch(even + k_stride, _MM_HINT_T0);
      }
      if (here == 32 && wide == 32 && full == u1) {
        float* at = out + panel * panel_stride;
        const bf16* even = src + p0 + 2 * u0 * k_stride;
        for (int64_t u = u0; u < u1; ++u, even += 2 * k_stride)
          weave_lines(even, even + k_stride, at + u * 32);
        continue;
      }
      for (int64_t l0 = 0; l0 < wide; l0 += 16) {
        const __mmask16 from = mask_of(here - l0), to = mask_of(wide - l0);
        float* at = out + panel * panel_stride + l0;
        const bf16* lo = src + p0 + l0;
        for (int64_t u = u0; u < full; ++u) {
          const bf16* even = lo + 2 * u * k_stride;
          _mm512_mask_storeu_ps(at + u * wide, to, weave16(even, even + k_stride, from));
        }
        if (full < u1)
          _mm512_mask_storeu_ps(at + full * wide, to,
                                weave16(lo + 2 * full * k_stride, nullptr, from));
      }
    }
  }
}

template <class T>
bool pack(const T* src, int64_t lane_stride, int64_t k_stride, int64_t lanes, int64_t units,
          int64_t width, int64_t panel_stride, bool pad, float* out) {
  if (lane_stride == 1) {
    copy(src, k_stride, lanes, units, width, panel_stride, pad, out);
    return true;
  }
  if (k_stride != 1) return false;
  for (int64_t p0 = 0; p0 < lanes; p0 += width, out += panel_stride) {
    const int64_t here = std::min(width, lanes - p0);
    turn<T>(reinterpret_cast<const char*>(src + p0 * lane_stride),
            lane_stride * static_cast<int64_t>(sizeof(T)), here, units, pad ? width : here, out);
  }
  return true;
}

}  // namespace

bool pack_block_avx512(const PackSource& s, bool pairs, int64_t lanes, int64_t kc, int64_t width,
                       int64_t panel_stride, bool pad, float* out) {
  if (!use_avx512()) return false;
  if (pairs) {
    const auto* src = static_cast<const bf16*>(s.data);
    if (s.lane_stride == 1) {
      weave(src, s.k_stride, lanes, kc, width, panel_stride, pad, out);
      return true;
    }
    // A pair that lies together is a float to move; an odd end of k is not, and is rare.
    if (s.k_stride != 1 || kc % 2 != 0) return false;
    for (int64_t p0 = 0; p0 < lanes; p0 += width, out += panel_stride) {
      const int64_t here = std::min(width, lanes - p0);
      turn<float>(reinterpret_cast<const char*>(src + p0 * s.lane_stride), s.lane_stride * 2, here,
                  kc / 2, pad ? width : here, out);
    }
    return true;
  }
  if (s.dtype == DType::f32)
    return pack(static_cast<const float*>(s.data), s.lane_stride, s.k_stride, lanes, kc, width,
                panel_stride, pad, out);
  if (s.dtype == DType::bf16)
    return pack(static_cast<const bf16*>(s.data), s.lane_stride, s.k_stride, lanes, kc, width,
                panel_stride, pad, out);
  return pack(static_cast<const f16*>(s.data), s.lane_stride, s.k_stride, lanes, kc, width,
              panel_stride, pad, out);
}

}  // namespace snug::blas
