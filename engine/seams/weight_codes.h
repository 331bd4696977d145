// WeightCodes: how frozen weights rest in codes instead of the dtype that layers read. What codes
// them is in quant/; a store (engine/stores/coded_params.h) decodes one parameter at a time into
// planned scratch. Of a tensor of n elements, coded by itself, all that is kept lies in bytes(n)
// bytes one behind the other.
#pragma once

#include <string>
#include <vector>

#include "engine/memory/context.h"
#include "engine/seams/parameter.h"

namespace snug {

class WeightCodes {
 public:
  virtual ~WeightCodes() = default;
  // For messages and files: nf4, or nf4-double, whose scales are codes too.
  virtual std::string text() const = 0;
  // The rows of the tensors that a frozen parameter is coded by, of which it is made in this order;
  // empty: it stays in the dtype that layers read.
  virtual std::vector<int64_t> rows(const ParamInfo& param) const = 0;
  // Of one tensor, a multiple of 256.
  virtual int64_t bytes(int64_t elements) const = 0;
  // Of one tensor: codes (bytes(n)) u8; values (n) f32 to encode, f32, bf16 or f16 to decode to,
  // each value rounded once. Decoding is a function of the codes alone.
  virtual void encode(Context& ctx, const View& codes, const View& values) const = 0;
  virtual void decode(Context& ctx, const View& values, const View& codes) const = 0;
};

}  // namespace snug
