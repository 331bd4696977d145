// A base whose linear weights of the blocks are what codes of 4 bits decode to: the weights that an
// adapter was trained over, for files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "layers/models/family.h"
#include "layers/models/peft.h"
#include "layers/parts/spec.h"
#include "quant/weight_codes.h"

namespace snug {

class DecodedBase {
 public:
  // `form`: base_form() of layers/models/peft.h, not full.
  DecodedBase(const ModelSpec& spec, const std::string& form);
  const std::string& form() const { return form_; }
  // Whether tensors of the parameter rest in codes.
  bool codes(const ParamInfo& param) const { return !codes_->rows(param).empty(); }
  // The values that the codes of a tensor decode to, in f32 and in the order of its file. Throws data
  // on one that is not finite. Memory: the tensor three times over.
  std::vector<float> decode(const ParamInfo& param, const FilePiece& piece,
                            const SafeTensor& tensor) const;

 private:
  std::string form_;
  std::shared_ptr<const BlockCodes> codes_;
};

}  // namespace snug
