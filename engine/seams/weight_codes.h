// WeightCodes: how frozen weights rest in codes instead of the dtype that layers read. What codes
// them is in quant/; a store (engine/stores/coded_params.h) decodes one parameter at a time into
// planned scratch, or a product reads them as they are. Of a tensor (rows, width), coded by itself,
// all that is kept lies in bytes(rows, width) bytes one behind the other.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "engine/memory/context.h"
#include "engine/seams/parameter.h"

namespace snug {

inline constexpr float kMostOfF16 = 65504;

// A weight (out, in) that products read as it rests: rows of whole numbers from -127 to 127, each with
// the largest magnitude of the row, w[m][k] = codes[m][k] scales[m] / 127. In pieces of rows one behind
// the other: those that were coded by themselves.
struct Int8Weight {
  struct Rows {
    View codes;   // (rows, in) u8, the bytes of two's complement
    View scales;  // (rows) f32
  };
  std::array<Rows, 4> pieces = {};
  int count = 0;
  float threshold =
      0;  // activations of this magnitude and above are multiplied as they are; 0: none
  bool any() const { return count > 0; }
};

class WeightCodes {
 public:
  virtual ~WeightCodes() = default;
  // For messages and files: nf4, or nf4-double, whose scales are codes too; int8.
  virtual std::string text() const = 0;
  // The rows of the tensors that a frozen parameter is coded by, of which it is made in this order;
  // empty: it stays in the dtype that layers read.
  virtual std::vector<int64_t> rows(const ParamInfo& param) const = 0;
  // Of one tensor, a multiple of 256.
  virtual int64_t bytes(int64_t rows, int64_t width) const = 0;
  // Of one tensor: codes (bytes(rows, width)) u8; values (rows, width) f32 to encode, f32, bf16 or f16
  // to decode to, each value rounded once. Decoding is a function of the codes alone.
  virtual void encode(Context& ctx, const View& codes, const View& values) const = 0;
  virtual void decode(Context& ctx, const View& values, const View& codes) const = 0;
  // Whether fp16 is to hold what is coded: its magnitudes are at most 65504.
  virtual bool of_f16() const { return false; }
  // Where products read codes as they are, those of one tensor, and from what magnitude on activations
  // are no codes; else none, and 0.
  virtual Int8Weight::Rows int8_rows(const View& /*codes*/, int64_t /*rows*/,
                                     int64_t /*width*/) const {
    return {};
  }
  virtual float threshold() const { return 0; }
  // For the plan: what products do to numbers beside reading codes; "": nothing.
  virtual std::string of_products() const { return ""; }
};

}  // namespace snug
