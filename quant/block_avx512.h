// What quant/block.cpp does with the books of its codecs, sixteen elements at a time in AVX-512, with
// the same bits: tables lie in registers, so nothing is gathered from memory. Called only where the
// machine has it.
#pragma once

#include <cstdint>

#include "quant/code_book.h"

namespace snug {

// The bounds of a book for a search in halves of their keys, of which more lie in a register. The upper
// half, 128 steps an octave, finds the entry but for keys in the step of a bound: there the lower half
// does, if no two bounds lie in one step.
inline constexpr int kSearchLevels = 8;  // of kMaxCodes entries
constexpr int first_of_level(int level) {
  return level < 6 ? 32 * level : 128 + (1 << level);
}
struct SearchLevels {
  // In the order in which they are asked for: level k has 2^k, of the middles of as many equal runs of
  // entries, and begins with a register of 32.
  alignas(64) int16_t upper[first_of_level(kSearchLevels)]{};
  alignas(64) int16_t upper_of[kMaxCodes]{};  // by entry, of the bound above it
  alignas(64) uint16_t lower_of[kMaxCodes]{};
  const CodeBook* book = nullptr;
  bool enough = false;    // no two bounds lie in one step
  bool in_order = false;  // the codes of the entries are 0, 1, 2 ...
};
constexpr void fill(SearchLevels& levels, const CodeBook& book) {
  levels.book = &book;
  levels.in_order = levels.enough = true;
  for (int k = 0; k < kMaxCodes; ++k) {
    if (k < book.size) levels.in_order = levels.in_order && book.codes[k] == k;
    levels.upper_of[k] = static_cast<int16_t>(book.bounds[k] >> 16);
    levels.lower_of[k] = static_cast<uint16_t>(book.bounds[k] & 0xffff);
    if (k > 0 && k + 1 < book.size)
      levels.enough = levels.enough && levels.upper_of[k] > levels.upper_of[k - 1];
  }
  for (int k = 0; k < kSearchLevels; ++k) {
    const int run = kMaxCodes >> k;
    for (int j = 0; j < 1 << k; ++j)
      levels.upper[first_of_level(k) + j] = levels.upper_of[run * j + run / 2 - 1];
  }
}

// The nearest entries of x * by, or x / by, of the first n / 32 * 32 elements; gives how many. Of
// a book of which one step is enough.
int64_t find_entries_avx512(const SearchLevels& levels, bool divide, float by, const float* x,
                            int64_t n, uint8_t* entries);

// y = values[code] * by, of the first n / 16 * 16 elements.
int64_t decode_bytes_avx512(const float* values, float by, float* y, const uint8_t* codes,
                            int64_t n);

}  // namespace snug
