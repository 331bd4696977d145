// RestForm: how the numbers of an optimizer's state rest. It says bytes alone: what the codes stand
// for belongs to quant/, whose codec it names, and whoever updates decodes a block, works on floats
// and encodes it again.
#pragma once

#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/name.h"
#include "engine/core/units.h"

namespace snug {

struct RestForm {
  DType dtype = DType::f32;     // of the values: f32, bf16, or u8, which holds codes
  int bits = 32;                // of a value
  int64_t block = 0;            // elements of one scale in f32, a divisor of 256; 0: no scales
  const char* codec = nullptr;  // of quant/codec.h, where it has codes

  bool coded() const { return block > 0; }
  int64_t value_bytes(int64_t n) const { return ceil_div(n * bits, int64_t{8}); }
  int64_t scales(int64_t n) const { return coded() ? ceil_div(n, block) : 0; }
  int64_t bytes(int64_t n) const { return value_bytes(n) + 4 * scales(n); }
};

// What an optimizer keeps of every parameter, and how it rests.
struct StateSet {
  StateSet() = default;
  StateSet(std::vector<Name> all) : names(std::move(all)) {}  // NOLINT: names alone rest in f32

  std::vector<Name> names;
  RestForm form;                    // of all states but for the codec
  std::vector<const char*> codecs;  // one a state, where form has codes
  std::vector<char> in_f32;         // by parameter: f32 whatever the form is; empty: none
  std::vector<char> states_in_f32;  // by state: the same
  bool whole = false;               // no parameter is cut: a window has all of it
  // By parameter: the rows of a matrix of which a state has a number for every row and then one for
  // every column, in place of one an element; 0: one an element; empty: of all.
  std::vector<int64_t> rows;
  // By state and by parameter: how many numbers it has of it, where that is neither; -1: as above, and
  // empty: of all.
  std::vector<std::vector<int64_t>> counts;

  int64_t rows_of(int param) const {
    const auto p = static_cast<size_t>(param);
    return param >= 0 && p < rows.size() ? rows[p] : 0;
  }
  // Of state `k` of a parameter, or of that many elements of it.
  int64_t numbers(int k, int param, int64_t elements) const {
    const auto p = static_cast<size_t>(param), state = static_cast<size_t>(k);
    if (param >= 0 && state < counts.size() && p < counts[state].size() && counts[state][p] >= 0)
      return elements > 0 ? counts[state][p] : 0;
    const int64_t r = rows_of(param);
    return r > 0 ? r + elements / r : elements;
  }

  RestForm form_of(int k, int param) const {
    const auto p = static_cast<size_t>(param);
    if (param >= 0 && p < in_f32.size() && in_f32[p] != 0) return {};
    const auto state = static_cast<size_t>(k);
    if (state < states_in_f32.size() && states_in_f32[state] != 0) return {};
    RestForm f = form;
    if (f.coded()) f.codec = codecs[state];
    return f;
  }
  // Of all states of a parameter.
  int64_t bytes_of(int param, int64_t elements) const {
    int64_t bytes = 0;
    for (int k = 0; k < static_cast<int>(names.size()); ++k)
      bytes += form_of(k, param).bytes(numbers(k, param, elements));
    return bytes;
  }
};

}  // namespace snug
