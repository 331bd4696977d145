#include "tools/convert/coded_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "layers/models/family.h"
#include "quant/coder.h"

namespace snug {
namespace {

// Beside X.weight: X.SCB.
std::string beside(const std::string& weight, const char* name) {
  return weight.substr(0, weight.rfind('.') + 1) + name;
}

}  // namespace

CodedRows::CodedRows(const ModelSpec& spec, const std::string& form) {
  set_base_form(form_, form, "--dtype");
  require(form_.codec == "int8", "a form of int8");
  if (spec.linear_in_out)
    fail(ErrorCode::unsupported, "a family whose files hold linear weights as (out, in) for int8",
         fmt::format("{}, whose Conv1D holds (in, out)", spec.family),
         "--dtype f16, which load_in_8bit=true codes as it is read");
  if (spec.head != HeadKind::causal_lm)
    fail(ErrorCode::unsupported, "a causal language model to write in int8",
         fmt::format("a head for {}", to_string(spec.head)),
         "--dtype f16, which load_in_8bit=true codes as it is read");
  codes_ = std::dynamic_pointer_cast<const BlockCodes>(block_codes(spec, form_));
  skip_ = modules_of_no_block(spec);
  skip_.insert(skip_.end(), form_.skip_modules.begin(), form_.skip_modules.end());
}

void CodedRows::add_specs(std::vector<SafeSpec>& list, const SafeSpec& weight) {
  list.push_back({weight.name, SafeDType::I8, weight.shape});
  list.push_back({beside(weight.name, "SCB"), SafeDType::F32, {weight.shape[0]}});
  list.push_back({beside(weight.name, "weight_format"), SafeDType::U8, {}});
}

void CodedRows::write(SafetensorsWriter& writer, const SafeTensor& weight, int threads) const {
  const int64_t n = weight.elements(), width = weight.shape[1];
  std::vector<float> values(static_cast<size_t>(n));
  convert(weight.dtype, weight.data, n, values.data());
  for (int64_t i = 0; i < n; ++i) {
    float& x = values[static_cast<size_t>(i)];
    if (!(std::fabs(x) <= kMostOfF16))
      fail(ErrorCode::data, "weights that fp16 can hold, 65504 at most, to be coded",
           fmt::format("element {} of {} that is {}", i, weight.name, x), "--dtype bf16 or f32");
    x = to_f32(from_f32<f16>(x));
  }
  std::vector<std::byte> back;
  const Codes made =
      encode_tensor(values.data(), n, DType::f32, codes_->spec(width), threads, back);
  writer.write(weight.name, made.codes.data(), static_cast<int64_t>(made.codes.size()));
  writer.write(beside(weight.name, "SCB"), made.scales.data(),
               static_cast<int64_t>(made.scales.size() * sizeof(float)));
  const uint8_t by_rows = 0;
  writer.write(beside(weight.name, "weight_format"), &by_rows, 1);
}

nlohmann::json CodedRows::config() const {
  return quantization_config(form_, skip_);
}

}  // namespace snug
