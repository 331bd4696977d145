// Compiled for AVX-512 whatever the flags of the build: called only where the CPU has it. Headers
// come before the switch, so that nothing shared with other files is compiled for it.
#include "quant/block_avx512.h"

#if !defined(__clang__)
// GCC 12's own intrinsics leave operands undefined on purpose and then warn about it.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

namespace snug {
namespace {

// 32 bits of the table of sixteen registers, or fewer, that the index asks for.
inline __m512i pick32(const __m512i* table, __m512i index) {
  return _mm512_permutex2var_epi32(table[0], index, table[1]);
}
inline __m512i pick64(const __m512i* table, __m512i index) {
  return _mm512_mask_blend_epi32(_mm512_test_epi32_mask(index, _mm512_set1_epi32(32)),
                                 pick32(table, index), pick32(table + 2, index));
}
inline __m512i pick128(const __m512i* table, __m512i index) {
  return _mm512_mask_blend_epi32(_mm512_test_epi32_mask(index, _mm512_set1_epi32(64)),
                                 pick64(table, index), pick64(table + 4, index));
}

// The same of 16 bits.
inline __m512i pick_of64(const int16_t* table, __m512i index) {
  return _mm512_permutex2var_epi16(_mm512_load_si512(table), index, _mm512_load_si512(table + 32));
}
inline __m512i pick_of128(const int16_t* table, __m512i index, __mmask32 second) {
  return _mm512_mask_blend_epi16(second, pick_of64(table, index), pick_of64(table + 64, index));
}

// The entry of a level to that of the next: twice as many, and one more where the key lies above.
inline __m512i go_on(__m512i entry, __m512i key, __m512i bound) {
  const __m512i twice = _mm512_add_epi16(entry, entry);
  return _mm512_mask_add_epi16(twice, _mm512_cmpgt_epi16_mask(key, bound), twice,
                               _mm512_set1_epi16(1));
}

// Whether a book has sixteen entries or fewer: the first four levels of its search have no bound.
bool has_sixteen(const SearchLevels& levels) {
  return levels.upper[first_of_level(3)] == kNoBound >> 16;
}

template <bool kDivide>
inline __m512i key_of(const float* x, __m512 by) {
  const __m512 v = _mm512_loadu_ps(x);
  const __m512i bits = _mm512_castps_si512(kDivide ? _mm512_div_ps(v, by) : _mm512_mul_ps(v, by));
  return _mm512_xor_si512(
      bits, _mm512_and_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(0x7fffffff)));
}

// Of 32 kChains elements, side by side: a step of a search waits for the one before.
template <bool kSixteen, bool kDivide, int kChains>
inline void find_side_by_side(const SearchLevels& levels, __m512 factor, __m512i uppers,
                              const float* x, uint8_t* entries) {
  __m512i upper[kChains], lower[kChains], entry[kChains], bound[kChains];
  const auto each = [](auto&& f) {
    for (int c = 0; c < kChains; ++c) f(c);
  };
  const auto level = [&](int k) { return levels.upper + first_of_level(k); };
  const auto go_on_all = [&] {
    each([&](int c) { entry[c] = go_on(entry[c], upper[c], bound[c]); });
  };
  each([&](int c) {
    const __m512i first = key_of<kDivide>(x + 32 * c, factor),
                  second = key_of<kDivide>(x + 32 * c + 16, factor);
    upper[c] = _mm512_permutex2var_epi16(first, uppers, second);
    lower[c] =
        _mm512_permutex2var_epi16(first, _mm512_sub_epi16(uppers, _mm512_set1_epi16(1)), second);
    entry[c] = _mm512_setzero_si512();
  });
  for (int k = kSixteen ? 4 : 0; k < (kSixteen ? 8 : 6); ++k) {
    const __m512i table = _mm512_load_si512(level(k));
    each([&](int c) { bound[c] = _mm512_permutexvar_epi16(entry[c], table); });
    go_on_all();
  }
  __mmask32 same[kChains];
  if constexpr (kSixteen) {
    each([&](int c) {
      bound[c] = _mm512_permutexvar_epi16(entry[c], _mm512_load_si512(levels.upper_of));
      same[c] = _mm512_cmpeq_epi16_mask(upper[c], bound[c]);
      bound[c] = _mm512_permutexvar_epi16(entry[c], _mm512_load_si512(levels.lower_of));
    });
  } else {
    each([&](int c) { bound[c] = pick_of64(level(6), entry[c]); });
    go_on_all();
    each([&](int c) {
      bound[c] =
          pick_of128(level(7), entry[c], _mm512_test_epi16_mask(entry[c], _mm512_set1_epi16(64)));
    });
    go_on_all();
    const auto pick = [&](const int16_t* table, int c) {
      const __mmask32 odd64 = _mm512_test_epi16_mask(entry[c], _mm512_set1_epi16(64)),
                      odd128 = _mm512_test_epi16_mask(entry[c], _mm512_set1_epi16(128));
      return _mm512_mask_blend_epi16(odd128, pick_of128(table, entry[c], odd64),
                                     pick_of128(table + 128, entry[c], odd64));
    };
    each([&](int c) {
      same[c] = _mm512_cmpeq_epi16_mask(upper[c], pick(levels.upper_of, c));
      bound[c] = pick(reinterpret_cast<const int16_t*>(levels.lower_of), c);
    });
  }
  each([&](int c) {
    const __m512i last =
        _mm512_mask_add_epi16(entry[c], _mm512_mask_cmpgt_epu16_mask(same[c], lower[c], bound[c]),
                              entry[c], _mm512_set1_epi16(1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(entries + 32 * c), _mm512_cvtepi16_epi8(last));
  });
}

template <bool kSixteen, bool kDivide>
int64_t find_entries(const SearchLevels& levels, float by, const float* x, int64_t n,
                     uint8_t* entries) {
  constexpr int kChains = 8;  // a block of 256
  const __m512 factor = _mm512_set1_ps(by);
  alignas(64) uint16_t odd[32];
  for (int k = 0; k < 32; ++k) odd[k] = static_cast<uint16_t>(2 * k + 1);
  const __m512i uppers = _mm512_load_si512(odd);
  int64_t i = 0;
  for (; i + 32 * kChains <= n; i += 32 * kChains)
    find_side_by_side<kSixteen, kDivide, kChains>(levels, factor, uppers, x + i, entries + i);
  for (; i + 32 <= n; i += 32)
    find_side_by_side<kSixteen, kDivide, 1>(levels, factor, uppers, x + i, entries + i);
  return i;
}

}  // namespace

int64_t find_entries_avx512(const SearchLevels& levels, bool divide, float by, const float* x,
                            int64_t n, uint8_t* entries) {
  if (has_sixteen(levels))
    return divide ? find_entries<true, true>(levels, by, x, n, entries)
                  : find_entries<true, false>(levels, by, x, n, entries);
  return divide ? find_entries<false, true>(levels, by, x, n, entries)
                : find_entries<false, false>(levels, by, x, n, entries);
}

int64_t decode_bytes_avx512(const float* values, float by, float* y, const uint8_t* codes,
                            int64_t n) {
  __m512i table[16];
  for (int k = 0; k < 16; ++k) table[k] = _mm512_loadu_si512(values + 16 * k);
  const __m512 factor = _mm512_set1_ps(by);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512i code =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m512i picked =
        _mm512_mask_blend_epi32(_mm512_test_epi32_mask(code, _mm512_set1_epi32(128)),
                                pick128(table, code), pick128(table + 8, code));
    _mm512_storeu_ps(y + i, _mm512_mul_ps(_mm512_castsi512_ps(picked), factor));
  }
  return i;
}

}  // namespace snug

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
