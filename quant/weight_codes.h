// BlockCodes: frozen weights in the codes of a block-wise codec, as bitsandbytes rests those of its
// Linear4bit: each tensor of the files by itself, in blocks of 64, the scales in codes too or not.
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

class BlockCodes final : public WeightCodes {
 public:
  using Rows = std::function<std::vector<int64_t>(const ParamInfo&)>;
  // `rows`: what WeightCodes::rows says. A codec of 4 or 8 bits that brings no book with the data.
  BlockCodes(const CodeSpec& spec, Rows rows);
  const CodeSpec& spec() const { return spec_; }
  std::string text() const override;
  std::vector<int64_t> rows(const ParamInfo& param) const override { return rows_(param); }
  int64_t bytes(int64_t elements) const override;
  void encode(Context& ctx, const View& codes, const View& values) const override;
  void decode(Context& ctx, const View& values, const View& codes) const override;
  // A tensor that rests in codes in the host's memory already, of this spec: its bytes() here.
  std::vector<uint8_t> pack(const Codes& codes, int64_t elements) const;

 private:
  CodeSpec spec_;
  Rows rows_;
};

}  // namespace snug
