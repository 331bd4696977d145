// One tensor to codes and back in the host's memory, by the ops of quant/quantise.h in an arena of
// their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/dtype.h"
#include "quant/codec.h"

namespace snug {

// What rests of a tensor: the names are those of quant/quantise.h.
struct Codes {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> scale_codes;  // doubled
  float offset = 0;                  // doubled
  std::vector<float> book;           // of a codec without one of its own
};

// n >= 1 elements of f32, bf16 or f16 at any alignment. `back`: the decoded tensor in its dtype.
Codes encode_tensor(const void* x, int64_t n, DType dtype, const CodeSpec& spec, int threads,
                    std::vector<std::byte>& back);
// Sizes must be those of `spec` and n.
std::vector<std::byte> decode_tensor(const Codes& from, int64_t n, DType dtype,
                                     const CodeSpec& spec, int threads);

// Code of element i.
inline uint8_t code_at(const Codes& from, int bits, int64_t i) {
  if (bits == 8) return from.codes[static_cast<size_t>(i)];
  const uint8_t pair = from.codes[static_cast<size_t>(i / 2)];
  return i % 2 == 0 ? pair >> 4 : pair & 15;
}

// Where the codes of a codec lie, ascending: as shares of the largest magnitude, or of min_max8 of
// the way from the least value to the largest. Two codes of one value (zeros of fp4) share a place.
struct EntryTable {
  std::vector<double> places;
  int of_code[kMaxCodes] = {};
};
EntryTable entry_table(const CodeSpec& spec, const Codes& from);

}  // namespace snug
