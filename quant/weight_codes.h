// BlockCodes: frozen weights in the codes of a block-wise codec: each tensor of the files by itself.
//   In blocks of 64, the scales in codes too or not, as bitsandbytes rests those of its Linear4bit.
//   A block a row, as it rests those of its Linear8bitLt (CB and SCB): int8 of what fp16 makes of a
//   weight, which products of layers/ops/int8_linear.h read as they are.
//
// One tensor of n elements in bytes, each part at a multiple of 64:
//   codes        spec.code_bytes(n) u8
//   scales       (blocks) f32; doubled: (ceil(blocks/256)) f32
//   scale_codes  doubled: (blocks) u8
//   offset       doubled: (1) f32
// Math, dtypes, numerics and errors are those of quant/quantise.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/seams/weight_codes.h"
#include "quant/codec.h"
#include "quant/coder.h"

namespace snug {

// What LLM.int8() takes as an outlier unless it is told: Dettmers, Lewis, Belkada, Zettlemoyer (2022).
inline constexpr double kInt8Threshold = 6.0, kMostInt8Threshold = 65504;  // all of fp16
// "int8" of that threshold, else "int8:4.5".
std::string int8_form(double threshold);

class BlockCodes final : public WeightCodes {
 public:
  using Rows = std::function<std::vector<int64_t>(const ParamInfo&)>;
  // `rows`: what WeightCodes::rows says. A codec of 4 or 8 bits that brings no book with the data. `text`: of
  // all; empty: that of the codec.
  BlockCodes(const CodeSpec& spec, Rows rows, std::string text = "");
  // Blocks that are rows, of int8. Throws usage on a threshold that is no number of at least 0.
  BlockCodes(float threshold, Rows rows, std::string text = "");
  // Of a tensor whose rows are `width` long.
  CodeSpec spec(int64_t width) const;
  std::string text() const override;
  std::vector<int64_t> rows(const ParamInfo& param) const override { return rows_(param); }
  int64_t bytes(int64_t rows, int64_t width) const override;
  void encode(Context& ctx, const View& codes, const View& values) const override;
  void decode(Context& ctx, const View& values, const View& codes) const override;
  bool of_f16() const override { return by_rows_; }
  Int8Weight::Rows int8_rows(const View& codes, int64_t rows, int64_t width) const override;
  float threshold() const override { return threshold_; }
  std::string of_products() const override;
  // Values of rows that are `width` long, in the host's memory, become what their codes decode to.
  void round_trip(std::vector<float>& values, int64_t width, int threads) const;
  // A tensor that rests in codes in the host's memory already, of this spec: its bytes() here.
  std::vector<uint8_t> pack(const Codes& codes, int64_t rows, int64_t width) const;

 private:
  CodeSpec spec_;
  bool by_rows_ = false;
  float threshold_ = 0;
  Rows rows_;
  std::string text_;
};

}  // namespace snug
