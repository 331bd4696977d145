// A file of weights at rest in codes: what each tensor would take and lose, the file itself under
// the names of bitsandbytes, and back.
//
// Of a tensor X the file holds
//   X                                     u8: 4-bit codes ((n + 1) / 2, 1), 8-bit codes as X was
//   X.absmax                              f32 (blocks), of min_max8 (blocks, 2): s and z;
//                                         doubled: u8, their codes
//   X.quant_map                           f32 by code (16 or 256), of codecs with a book
//   X.nested_absmax, X.nested_quant_map   f32, doubled
//   X.quant_state.bitsandbytes__nf4       u8: JSON with quant_type, blocksize, dtype, shape, and
//                                         doubled nested_blocksize, nested_dtype, nested_offset
// The last name is that of bitsandbytes for nf4 and fp4, which it opens (Linear4bit); of the other
// codecs, which it does not keep in files, it is X.quant_state.snug__NAME.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/codec.h"
#include "tools/codes/codes_picture.h"

namespace snug {

struct CodeOptions {
  int threads = 1;
  std::string match;   // a regular expression: tensors with a match in their name; empty: all
  std::string output;  // a file to write; empty: none
};

// Codes every tensor of f32, bf16 or f16 that has elements and matches; what else the file holds
// goes to the output as it is and is counted in `copied`. `path`: a safetensors file, or a folder
// of a model. Throws data on numbers that are not finite, on a file whose tensors are codes already
// or have names that codes need, and on one without tensors to code; usage on a match of none.
CodedFile code_file(const std::string& path, const CodeSpec& spec, const CodeOptions& options,
                    int64_t& copied);

struct DecodedTensor {
  std::string name, dtype, codec;
  std::vector<int64_t> shape;
  int64_t block = 0;
  bool doubled = false;
  int64_t bytes = 0, coded_bytes = 0;
};

// The reverse. options.match is not read; without an output the file is only checked. Throws data
// on a file without codes, on parts that are missing or do not belong together, and on a book that
// is not the codec's.
std::vector<DecodedTensor> decode_file(const std::string& path, const CodeOptions& options,
                                       int64_t& copied);

}  // namespace snug
