// Blocks in codes of a book of lines (quant/map_lines.h), 64 elements at a time in registers. Read by
// files compiled for AVX-512 alone, inside of their unnamed namespace and behind their switch, as
// engine/kernels/wide_avx512.h is: the switch has F, BW, DQ, VL and VBMI.
#pragma once

// Codes of 64 elements times `factor`; all are finite.
struct MapEncoder {
  const MapLines& lines;
  __m512i end[2], first[2], near, middle, upper, order;
  __m512 slope, offset, last;
  bool is_signed;

  explicit MapEncoder(const MapLines& l) : lines(l), is_signed(l.is_signed) {
    for (int k = 0; k < 2; ++k) {
      end[k] = _mm512_load_si512(l.ends + 16 * k);
      first[k] = _mm512_load_si512(l.first + 16 * k);
    }
    near = _mm512_set1_epi32(0xffff & ~(2 * l.window - 1));
    middle = _mm512_set1_epi32(l.middle);
    alignas(64) uint16_t odd[32];
    for (int k = 0; k < 32; ++k) odd[k] = static_cast<uint16_t>(2 * k + 1);
    upper = _mm512_load_si512(odd);
    order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    slope = _mm512_load_ps(l.slope);
    offset = _mm512_load_ps(l.offset);
    last = _mm512_load_ps(l.last);
  }

  [[gnu::always_inline]] void encode64(const float* x, __m512 factor, uint8_t* codes) const {
    if (is_signed)
      find<true>(x, factor, codes);
    else
      find<false>(x, factor, codes);
  }
  // A stage of all 64 after the other: an operation waits some cycles for the one before, and the
  // processor looks ahead only so far.
  template <bool kSigned>
  [[gnu::always_inline]] void find(const float* x, __m512 factor, uint8_t* codes) const {
    constexpr int kVectors = 4;
    const __m512 least = _mm512_set1_ps(MapLines::kLeast);
    __m512 v[kVectors], a[kVectors];
    __m512i at[kVectors], u[kVectors];
    __mmask16 above[kVectors];
// Unrolled, so that all of them are registers.
#define SNUG_EACH _Pragma("GCC unroll 16") for (int c = 0; c < kVectors; ++c)
    SNUG_EACH v[c] = _mm512_mul_ps(_mm512_loadu_ps(x + 16 * c), factor);
    constexpr int kLargerMagnitude = 0b1011;
    SNUG_EACH a[c] =
        kSigned ? _mm512_range_ps(v[c], least, kLargerMagnitude) : _mm512_max_ps(v[c], least);
    SNUG_EACH at[c] = _mm512_srli_epi32(_mm512_castps_si512(a[c]), 23);
    SNUG_EACH u[c] = _mm512_permutex2var_epi32(end[0], at[c], end[1]);
    SNUG_EACH at[c] = _mm512_permutex2var_epi32(first[0], at[c], first[1]);
    SNUG_EACH above[c] = _mm512_cmpgt_epu32_mask(
        kSigned ? _mm512_rol_epi32(_mm512_castps_si512(v[c]), 1) : _mm512_castps_si512(a[c]), u[c]);
    SNUG_EACH at[c] = _mm512_mask_add_epi32(at[c], above[c], at[c], _mm512_set1_epi32(1));
    SNUG_EACH a[c] = _mm512_fmadd_ps(a[c], _mm512_permutexvar_ps(at[c], slope),
                                     _mm512_permutexvar_ps(at[c], offset));
    SNUG_EACH a[c] = _mm512_min_ps(a[c], _mm512_permutexvar_ps(at[c], last));
    if constexpr (kSigned) {
      constexpr int kWithSign = 0xf8;  // t | (v & sign)
      SNUG_EACH a[c] = _mm512_castsi512_ps(
          _mm512_ternarylogic_epi32(_mm512_castps_si512(a[c]), _mm512_castps_si512(v[c]),
                                    _mm512_set1_epi32(-0x7fffffff - 1), kWithSign));
    }
    SNUG_EACH u[c] = _mm512_cvttps_epi32(a[c]);
    if constexpr (kSigned) SNUG_EACH u[c] = _mm512_add_epi32(u[c], middle);
    const __m512i bytes = _mm512_packus_epi16(_mm512_permutex2var_epi16(u[0], upper, u[1]),
                                              _mm512_permutex2var_epi16(u[2], upper, u[3]));
    _mm512_storeu_si512(codes, _mm512_permutexvar_epi64(order, bytes));
    __mmask16 near_bound[kVectors];
    SNUG_EACH near_bound[c] = _mm512_testn_epi32_mask(u[c], near);
#undef SNUG_EACH
    if (__builtin_expect(_kortestz_mask16_u8(_kor_mask16(near_bound[0], near_bound[1]),
                                             _kor_mask16(near_bound[2], near_bound[3])),
                         1))
      return;
    for (int c = 0; c < kVectors; ++c)
      search_entries(*lines.book, near_bound[c], x + 16 * c, _mm512_cvtss_f32(factor),
                     codes + 16 * c);
  }
};

// 64 values times `factor`. A book has 256, of which a register picks 128 bytes at once.
struct MapDecoder {
  const MapLines& lines;
  __m512i turned;

  explicit MapDecoder(const MapLines& l)
      : lines(l), turned(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)) {}

  __m512i bytes(int plane, __m512i code, __mmask64 upper) const {
    const uint8_t* of = lines.planes[plane];
    const auto table = [of](int k) { return _mm512_load_si512(of + 64 * k); };
    return _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(table(0), code, table(1)),
                                  _mm512_permutex2var_epi8(table(2), code, table(3)));
  }
  void decode64(const uint8_t* codes, __m512 factor, float* y) const {
    const __m512i code = _mm512_permutexvar_epi32(turned, _mm512_loadu_si512(codes));
    const __mmask64 upper = _mm512_movepi8_mask(code);
    const __m512i b0 = bytes(0, code, upper), b1 = bytes(1, code, upper),
                  b2 = bytes(2, code, upper), b3 = bytes(3, code, upper);
    const __m512i low[2] = {_mm512_unpacklo_epi8(b0, b1), _mm512_unpackhi_epi8(b0, b1)};
    const __m512i high[2] = {_mm512_unpacklo_epi8(b2, b3), _mm512_unpackhi_epi8(b2, b3)};
    for (int k = 0; k < 2; ++k) {
      const __m512 even = _mm512_castsi512_ps(_mm512_unpacklo_epi16(low[k], high[k]));
      const __m512 odd = _mm512_castsi512_ps(_mm512_unpackhi_epi16(low[k], high[k]));
      _mm512_storeu_ps(y + 32 * k, _mm512_mul_ps(even, factor));
      _mm512_storeu_ps(y + 32 * k + 16, _mm512_mul_ps(odd, factor));
    }
  }
};

// The bits of the largest magnitude of both.
inline __m512i larger_magnitude(__m512i largest, const float* x) {
  return _mm512_max_epu32(largest,
                          _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff)));
}
