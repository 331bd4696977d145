#include "engine/blas/matmul_pack.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

namespace snug::blas {
namespace {

// A register of eight units, loaded from eight neighbouring elements in memory.
inline __m256 load8(const float* p) {
  return _mm256_loadu_ps(p);
}
inline __m256 load8(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline __m256 load8(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// A bf16 pair that lies together in memory: moved as 4 bytes, never interpreted.
struct Pair {
  bf16 v[2];
};
inline __m256 load8(const Pair* p) {
  return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline float unit(float x) {
  return x;
}
inline float unit(bf16 x) {
  return to_f32(x);
}
inline float unit(f16 x) {
  return to_f32(x);
}
inline float pair_unit(bf16 lo, bf16 hi) {
  return std::bit_cast<float>(static_cast<uint32_t>(lo.bits) |
                              (static_cast<uint32_t>(hi.bits) << 16));
}

inline void transpose8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    u[4 * i + 0] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// Neighbours in memory are neighbours in k: eight lanes by eight units are turned in registers.
// `src` points at lane 0, unit 0; lane_bytes may be any multiple of the element size.
template <class T>
void turn_panel(const char* src, int64_t lane_bytes, int64_t lanes, int64_t units, int64_t width,
                float* out) {
  alignas(32) static constexpr char kZeros[32] = {};
  const int64_t last_group = std::max<int64_t>(width - 8, 0);
  for (int64_t l0 = 0;;) {
    const char* row[8];
    int64_t step[8];  // bytes for eight units; 0 for a lane that is not there
    for (int64_t i = 0; i < 8; ++i) {
      const bool there = l0 + i < lanes;
      row[i] = there ? src + (l0 + i) * lane_bytes : kZeros;
      step[i] = there ? static_cast<int64_t>(8 * sizeof(T)) : 0;
    }
    float* to = out + l0;
    __m256 r[8];
    int64_t u = 0;
    for (; u + 8 <= units; u += 8) {
      for (int i = 0; i < 8; ++i) {
        r[i] = load8(reinterpret_cast<const T*>(row[i]));
        // The same place of the next eight lanes: short rows give the hardware no time to notice.
        _mm_prefetch(row[i] + 8 * lane_bytes, _MM_HINT_T0);
        row[i] += step[i];
      }
      transpose8(r);
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + (u + i) * width, r[i]);
    }
    if (u < units) {
      for (int i = 0; i < 8; ++i) {
        alignas(32) char part[32] = {};
        if (step[i] != 0) std::memcpy(part, row[i], static_cast<size_t>(units - u) * sizeof(T));
        r[i] = load8(reinterpret_cast<const T*>(part));
      }
      transpose8(r);
      for (int i = 0; i < units - u; ++i) _mm256_storeu_ps(to + (u + i) * width, r[i]);
    }
    if (l0 == last_group) break;
    l0 = std::min(l0 + 8, last_group);
  }
}

// Neighbours in memory are neighbours in the lane: one k (one pair of k) of one panel.
template <class T>
inline void copy_lanes(const T* src, int64_t lanes, int64_t width, float* out) {
  if (lanes >= 8) {
    for (int64_t l = 0; l + 8 <= lanes; l += 8) _mm256_storeu_ps(out + l, load8(src + l));
    if (lanes % 8 != 0) _mm256_storeu_ps(out + lanes - 8, load8(src + lanes - 8));
  } else {
    for (int64_t l = 0; l < lanes; ++l) out[l] = unit(src[l]);
  }
  for (int64_t l = lanes; l < width; ++l) out[l] = 0;
}

// Rows of k of one panel. Full panels of the fp32 kernels, 6 lanes of A and 16 of B, are moved
// whole (by single lanes the gradient of a weight spent a ninth of its time here); the rows that
// the next strip will read are asked for meanwhile, a line once.
template <class T>
void copy_panel(const T* src, int64_t k_stride, int64_t units, int64_t lanes, int64_t width,
                float* out) {
  const T* ahead = src + units * k_stride;
  const auto line = reinterpret_cast<uintptr_t>(ahead) % 64;
  if (line == 0 || line + static_cast<uintptr_t>(lanes) * sizeof(T) > 64)
    for (int64_t k = 0; k < units; ++k) _mm_prefetch(ahead + k * k_stride + lanes - 1, _MM_HINT_T0);
  if (lanes == 6 && width == 6) {
    // Eight at once where a row follows: two that are not ours are read with it, and written where
    // that row goes.
    int64_t k = 0;
    for (; k_stride >= 2 && k + 1 < units; ++k, src += k_stride, out += 6)
      _mm256_storeu_ps(out, load8(src));
    for (; k < units; ++k, src += k_stride, out += 6) copy_lanes(src, 6, 6, out);
  } else if (lanes == 16 && width == 16) {
    for (int64_t k = 0; k < units; ++k, src += k_stride, out += 16) {
      _mm256_storeu_ps(out, load8(src));
      _mm256_storeu_ps(out + 8, load8(src + 8));
    }
  } else {
    for (int64_t k = 0; k < units; ++k, src += k_stride, out += width)
      copy_lanes(src, lanes, width, out);
  }
}

inline void weave8(const bf16* lo, const bf16* hi, float* out) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(lo));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(hi));
  _mm_storeu_ps(out, _mm_castsi128_ps(_mm_unpacklo_epi16(a, b)));
  _mm_storeu_ps(out + 4, _mm_castsi128_ps(_mm_unpackhi_epi16(a, b)));
}

inline void weave_lanes(const bf16* lo, const bf16* hi, int64_t lanes, int64_t width, float* out) {
  if (lanes >= 8 && hi != nullptr) {
    for (int64_t l = 0; l + 8 <= lanes; l += 8) weave8(lo + l, hi + l, out + l);
    if (lanes % 8 != 0) weave8(lo + lanes - 8, hi + lanes - 8, out + lanes - 8);
  } else {
    for (int64_t l = 0; l < lanes; ++l) out[l] = pair_unit(lo[l], hi != nullptr ? hi[l] : bf16{0});
  }
  for (int64_t l = lanes; l < width; ++l) out[l] = 0;
}

// The k range is walked in strips so that a strip of every panel is written while the source rows,
// which are long and far apart, are still in the nearest cache.
constexpr int64_t kStrip = 8;

struct Block {
  int64_t lanes, kc, width, panel_stride;
  bool pad;
  float* out;

  int64_t panels() const { return (lanes + width - 1) / width; }
  int64_t lanes_of(int64_t panel) const { return std::min(width, lanes - panel * width); }
  int64_t width_of(int64_t panel) const { return pad ? width : lanes_of(panel); }
  float* out_of(int64_t panel) const { return out + panel * panel_stride; }
};

template <class T>
void pack_floats(const T* src, int64_t lane_stride, int64_t k_stride, const Block& blk) {
  if (lane_stride == 1) {
    for (int64_t k0 = 0; k0 < blk.kc; k0 += kStrip)
      for (int64_t p = 0; p < blk.panels(); ++p)
        copy_panel(src + k0 * k_stride + p * blk.width, k_stride, std::min(kStrip, blk.kc - k0),
                   blk.lanes_of(p), blk.width_of(p), blk.out_of(p) + k0 * blk.width_of(p));
    return;
  }
  for (int64_t p = 0; p < blk.panels(); ++p) {
    const int64_t lanes = blk.lanes_of(p), width = blk.width_of(p);
    const T* from = src + p * blk.width * lane_stride;
    float* to = blk.out_of(p);
    if (k_stride == 1) {
      turn_panel<T>(reinterpret_cast<const char*>(from),
                    lane_stride * static_cast<int64_t>(sizeof(T)), lanes, blk.kc, width, to);
      continue;
    }
    for (int64_t k = 0; k < blk.kc; ++k) {
      for (int64_t l = 0; l < lanes; ++l)
        to[k * width + l] = unit(from[k * k_stride + l * lane_stride]);
      for (int64_t l = lanes; l < width; ++l) to[k * width + l] = 0;
    }
  }
}

void pack_pairs(const bf16* src, int64_t lane_stride, int64_t k_stride, const Block& blk) {
  const int64_t units = (blk.kc + 1) / 2, whole = blk.kc / 2;
  if (lane_stride == 1) {
    for (int64_t u0 = 0; u0 < units; u0 += kStrip)
      for (int64_t p = 0; p < blk.panels(); ++p)
        for (int64_t u = u0; u < std::min(u0 + kStrip, units); ++u) {
          const bf16* lo = src + 2 * u * k_stride + p * blk.width;
          weave_lanes(lo, u < whole ? lo + k_stride : nullptr, blk.lanes_of(p), blk.width_of(p),
                      blk.out_of(p) + u * blk.width_of(p));
        }
    return;
  }
  for (int64_t p = 0; p < blk.panels(); ++p) {
    const int64_t lanes = blk.lanes_of(p), width = blk.width_of(p);
    const bf16* from = src + p * blk.width * lane_stride;
    float* to = blk.out_of(p);
    int64_t u = 0;
    if (k_stride == 1) {
      turn_panel<Pair>(reinterpret_cast<const char*>(from),
                       lane_stride * static_cast<int64_t>(sizeof(bf16)), lanes, whole, width, to);
      u = whole;
    }
    for (; u < units; ++u) {
      for (int64_t l = 0; l < lanes; ++l) {
        const bf16* lo = from + 2 * u * k_stride + l * lane_stride;
        to[u * width + l] = pair_unit(*lo, u < whole ? lo[k_stride] : bf16{0});
      }
      for (int64_t l = lanes; l < width; ++l) to[u * width + l] = 0;
    }
  }
}

// Sixteen units of up to sixteen lanes, lane after lane, from memory whose neighbours are lanes:
// the rows of k are woven to pairs and turned, eight by eight.
void turn_step(const bf16* src, int64_t k_stride, int64_t kc, int64_t lanes, float* out) {
  for (int64_t u0 = 0; u0 < 16; u0 += 8)
    for (int64_t l0 = 0; l0 < lanes; l0 += 8) {
      __m256 r[8];
      for (int64_t i = 0; i < 8; ++i) {
        alignas(32) float woven[8] = {};
        const int64_t k = 2 * (u0 + i);
        const bf16* lo = src + k * k_stride + l0;
        if (k < kc)
          weave_lanes(lo, k + 1 < kc ? lo + k_stride : nullptr, std::min<int64_t>(8, lanes - l0), 8,
                      woven);
        r[i] = _mm256_load_ps(woven);
      }
      transpose8(r);
      for (int64_t i = 0; i < 8; ++i) _mm256_storeu_ps(out + (l0 + i) * 16 + u0, r[i]);
    }
}

template <class T>
const T* at(const PackSource& s, int64_t lane, int64_t k) {
  return static_cast<const T*>(s.data) + lane * s.lane_stride + k * s.k_stride;
}

}  // namespace

void pack_block(const PackSource& src, bool pairs, int64_t lane0, int64_t lanes, int64_t k0,
                int64_t kc, int64_t width, int64_t panel_stride, bool pad, float* out) {
  const PackSource from{static_cast<const char*>(src.data) +
                            (lane0 * src.lane_stride + k0 * src.k_stride) * size_of(src.dtype),
                        src.dtype, src.lane_stride, src.k_stride};
  if (pack_block_avx512(from, pairs, lanes, kc, width, panel_stride, pad, out)) return;
  const Block blk{lanes, kc, width, panel_stride, pad, out};
  if (pairs)
    pack_pairs(at<bf16>(src, lane0, k0), src.lane_stride, src.k_stride, blk);
  else if (src.dtype == DType::f32)
    pack_floats(at<float>(src, lane0, k0), src.lane_stride, src.k_stride, blk);
  else if (src.dtype == DType::bf16)
    pack_floats(at<bf16>(src, lane0, k0), src.lane_stride, src.k_stride, blk);
  else
    pack_floats(at<f16>(src, lane0, k0), src.lane_stride, src.k_stride, blk);
}

void pack_row_tiles(const PackSource& src, int64_t lane0, int64_t lanes, int64_t k0, int64_t kc,
                    int64_t units, int64_t width, int64_t lane_step, float* out) {
  const bf16* from = at<bf16>(src, lane0, k0);
  if (pack_row_tiles_avx512({from, src.dtype, src.lane_stride, src.k_stride}, lanes, kc, units,
                            width, lane_step, out))
    return;
  for (int64_t p0 = 0; p0 < lanes; p0 += width, from += width * src.lane_stride) {
    const int64_t here = std::min(width, lanes - p0);
    const int64_t panel_lanes = (here + lane_step - 1) / lane_step * lane_step;
    for (int64_t k = 0; k < 2 * units; k += 32) {
      const int64_t count = std::clamp<int64_t>(kc - k, 0, 32);
      const bf16* step = from + k * src.k_stride;
      if (src.lane_stride == 1 && src.k_stride != 1) {
        int64_t l = 0;
        for (; l < here; l += 16)
          turn_step(step + l, src.k_stride, count, std::min<int64_t>(16, here - l), out + l * 16);
        // A group of eight lanes is always written whole; the rest of the padding is not.
        for (l = (here + 7) / 8 * 8; l < panel_lanes; ++l) std::fill_n(out + l * 16, 16, 0.0f);
      } else {
        for (int64_t l = 0; l < panel_lanes; ++l) {
          const bf16* lane = step + l * src.lane_stride;
          bf16 row[32] = {};
          if (l < here && src.k_stride == 1)
            std::memcpy(row, lane, static_cast<size_t>(count) * sizeof(bf16));
          else if (l < here)
            for (int64_t i = 0; i < count; ++i) row[i] = lane[i * src.k_stride];
          std::memcpy(out + l * 16, row, sizeof row);
        }
      }
      out += panel_lanes * 16;
    }
  }
}

}  // namespace snug::blas
