// CodeBook: what the codes of a codec stand for, and where one ends and the next begins. Plain
// values, so that loops and kernels share it.
//
// Nearest entry  the number of bounds below a value; a bound is the middle of two entries, and a
//                value on it takes the lower one, or with ties to even the one of even code.
// Keys           bounds are compared as float_key(): the order of floats as integers, -0 below +0,
//                so that a book may tell the two zeros apart.
#pragma once

#include <bit>
#include <cstdint>

namespace snug {

// Ascending with the float. A NaN lies outside of the infinities, on the side of its sign.
constexpr int32_t float_key(float x) {
  const auto bits = std::bit_cast<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
constexpr float float_of_key(int32_t key) {
  return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff));
}

inline constexpr int kMaxCodes = 256;
inline constexpr int32_t kNoBound = 0x7fffffff;  // nothing lies above it

struct CodeBook {
  int32_t size = 0;             // entries
  uint8_t zero = 0, nan = 0;    // the codes of 0 and of a NaN
  uint8_t codes[kMaxCodes]{};   // of the entries in ascending order of value
  float values[kMaxCodes]{};    // by code; 0 where a code has no entry
  float sorted[kMaxCodes]{};    // of the entries in ascending order
  int32_t bounds[kMaxCodes]{};  // float_key; above bounds[k] is entry k + 1
};

// How many of the bounds are below.
constexpr int nearest_entry(const CodeBook& book, int32_t key) {
  int entry = 0;
  for (int step = kMaxCodes / 2; step > 0; step /= 2)
    if (key > book.bounds[entry + step - 1]) entry += step;
  return entry;
}

// Of `size` values in ascending order and their codes; codes null: 0, 1, 2 ... A NaN gets the last.
constexpr CodeBook make_book(const float* sorted, const uint8_t* codes, int size,
                             bool ties_to_even = false) {
  CodeBook book;
  book.size = size;
  for (int k = 0; k < kMaxCodes; ++k) {
    book.codes[k] = static_cast<uint8_t>(k);
    book.bounds[k] = kNoBound;
  }
  for (int k = 0; k < size; ++k) {
    if (codes != nullptr) book.codes[k] = codes[k];
    book.sorted[k] = sorted[k];
    book.values[book.codes[k]] = sorted[k];
  }
  for (int k = 0; k + 1 < size; ++k) {
    book.bounds[k] = float_key((sorted[k] + sorted[k + 1]) / 2);
    const bool upper = ties_to_even && book.codes[k + 1] % 2 == 0;
    if (upper) book.bounds[k] -= 1;
  }
  book.zero = book.codes[nearest_entry(book, 0)];
  book.nan = book.codes[size - 1];
  return book;
}

}  // namespace snug
