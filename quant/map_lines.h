// A book of 8 bits as straight lines, for loops that search and look up in registers. The bounds of
// the dynamic map lie evenly within a decade, so that the entry of a magnitude there is the whole
// part of
//   t = min(a slope + offset, last)          in steps of 2^-16, rounded as floats
// Why the entry is exact: t does not fall as a grows. Every bound and the float after it were asked
// when the lines were made: both lie within `window` steps of the whole number between their entries.
// So a t outside of a window has its bound on the right side, and what lies inside is searched for
// in the book. A decade's end is compared with as it is.
#pragma once

#include <cstdint>

#include "quant/code_book.h"

namespace snug {

struct MapLines {
  static constexpr int kOctaves = 32, kLines = 16, kSteps = 1 << 16;
  static constexpr float kLeast = 0x1p-31f;  // magnitudes are at least this; all below is one entry

  // By octave, the lower five bits of an exponent: magnitudes of 2^-31 to 2.
  alignas(64) uint32_t ends[kOctaves]{};  // the key above which the next line holds
  alignas(64) int32_t first[kOctaves]{};  // the line where it begins
  // By line.
  alignas(64) float slope[kLines]{};
  alignas(64) float offset[kLines]{};
  alignas(64) float last[kLines]{};
  // Bytes of the values by code, the lowest first: a register picks of 64 bytes at once.
  alignas(64) uint8_t planes[4][kMaxCodes]{};

  const CodeBook* book = nullptr;
  bool found = false;      // the entries of the book lie on such lines, and are its codes
  bool is_signed = false;  // else what is below 0 has entry 0
  int32_t window = 0;      // steps to either side, a power of two
  // Keys: the bits of a magnitude; signed, twice those and one more of a negative number, whose bound
  // belongs to the larger magnitude.
  // Signed, t counts from the entry of 0 and to the nearest: the entry is (+-t + middle) >> 16. Else t
  // >> 16. Either has the window's half added, so that one test of the lower bits finds it.
  int32_t middle = 0;
};

// The codes of x[i] * factor for the i whose bit of `which` is set, as the book has them.
void search_entries(const CodeBook& book, uint64_t which, const float* x, float factor,
                    uint8_t* codes);

// The same of the first n / 64 * 64 elements, all finite; gives how many. map_values: y = the values of
// codes times `scale`. Called only where use_avx512_vbmi().
int64_t map_entries_avx512(const MapLines& lines, float factor, const float* x, int64_t n,
                           uint8_t* codes);
int64_t map_values_avx512(const MapLines& lines, float scale, const uint8_t* codes, int64_t n,
                          float* y);

// Of a codec's own book of absmax; null for others and where lines do not reach.
const MapLines* map_lines(const CodeBook& book);

}  // namespace snug
