// Linear weights of the blocks in files as bitsandbytes' int8, a scale a row: what transformers saves of a model that it
// loaded with load_in_8bit, tensor by tensor, and opens again. Dettmers, Lewis, Belkada, Zettlemoyer, "LLM.int8()"
// (2022); layers/models/coded_weights.h has the tensors.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/io/safetensors.h"
#include "layers/models/base_form.h"
#include "layers/parts/spec.h"
#include "quant/weight_codes.h"

namespace snug {

class CodedRows {
 public:
  // `form`: int8, int8:4.5, int8/NAME,NAME (base_form.h). Throws usage on another, and unsupported on a model
  // whose files hold these weights as (in, out), or that is no causal language model: of others transformers codes
  // layers of the head too.
  CodedRows(const ModelSpec& spec, const std::string& form);
  bool codes(const ParamInfo& param) const { return !codes_->rows(param).empty(); }
  // The tensors in the place of a weight's.
  static void add_specs(std::vector<SafeSpec>& list, const SafeSpec& weight);
  // Codes of what fp16 makes of a weight (out, in). Throws data on a value that fp16 cannot hold.
  void write(SafetensorsWriter& writer, const SafeTensor& weight, int threads) const;
  // Of config.json.
  nlohmann::json config() const;

 private:
  PeftConfig form_;
  std::vector<std::string> skip_;
  std::shared_ptr<const BlockCodes> codes_;
};

}  // namespace snug
