// Weights that are in codes in a model's files, under the names of bitsandbytes: what transformers
// saves of a model with Linear4bit layers, U8 with the tensors of quant/code_parts.h, or with
// Linear8bitLt layers, I8:
//   X.weight         (out,in) i8: CB
//   X.SCB            (out) f32: the largest magnitude of each row
//   X.weight_format  () u8: 0, which is by rows; in most files
#pragma once

#include <list>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "engine/seams/parameter.h"
#include "layers/models/family.h"
#include "quant/code_parts.h"

namespace snug {

// Whether a tensor is of a dtype that codes have.
bool may_be_codes(const SafeTensor& tensor);

// Such a tensor where weights belong: throws data unless it is codes of a tensor of this shape, with
// scales and state as quant/code_parts.h checks them, and unsupported where the caller has no use for
// codes, or the family stores the weight transposed, of which codes are of the other order.
void check_codes(const SafetensorsFolder& files, const SafeTensor& tensor,
                 const std::vector<int64_t>& shape, bool transposed, bool allowed,
                 const std::string& folder);

// The tensors that belong to one in codes; none of a plain one.
std::vector<const SafeTensor*> parts_beside(const SafetensorsFolder& files,
                                            const SafeTensor& tensor, const std::string& folder);

// Gives tensor k of a parameter to the sink as it is, if it is in the codes that the table has for it.
bool put_codes(const SafetensorsFolder& files, const SafeTensor& tensor, const ParamTable& table,
               int param, size_t k, const FilePiece& piece, CodeSink& sink,
               const std::string& folder);

// Plain tensors in place of those in codes, in f32, while it lives.
class DecodedTensors {
 public:
  DecodedTensors(const SafetensorsFolder& files, int threads, std::string folder)
      : files_(files), threads_(threads), folder_(std::move(folder)) {}
  const SafeTensor& plain(const SafeTensor* tensor);

 private:
  struct Decoded {
    std::vector<std::byte> values;
    SafeTensor tensor;
  };
  const SafetensorsFolder& files_;
  int threads_;
  std::string folder_;
  std::list<Decoded> decoded_;
};

}  // namespace snug
