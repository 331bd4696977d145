#include "quant/weight_codes.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/core/error.h"
#include "engine/core/units.h"
#include "engine/kernels/kernels.h"
#include "quant/quantise.h"

namespace snug {
namespace {

constexpr int64_t kPartAlignment = 64;

// Parts of the bytes of a tensor, one behind the other.
class Parts {
 public:
  explicit Parts(const View& bytes) : bytes_(bytes) {}
  View next(int64_t elements, DType dtype) {
    const int64_t n = elements * size_of(dtype);
    View v = bytes_.rows(at_, n);
    at_ = round_up(at_ + n, kPartAlignment);
    v.shape = {elements};
    v.dtype = dtype;
    return v;
  }

 private:
  const View& bytes_;
  int64_t at_ = 0;
};

Coded parts_of(const View& bytes, int64_t n, const CodeSpec& spec) {
  Parts parts(bytes);
  const int64_t blocks = spec.blocks(n);
  Coded c;
  c.codes = parts.next(spec.code_bytes(n), DType::u8);
  if (!spec.doubled) {
    c.scales = parts.next(blocks, DType::f32);
    return c;
  }
  c.scales = parts.next(ceil_div(blocks, kDoubledBlock), DType::f32);
  c.scale_codes = parts.next(blocks, DType::u8);
  c.offset = parts.next(1, DType::f32);
  return c;
}

}  // namespace

std::string int8_form(double threshold) {
  return threshold == kInt8Threshold ? "int8" : fmt::format("int8:{}", threshold);
}

BlockCodes::BlockCodes(const CodeSpec& spec, Rows rows, std::string text)
    : spec_(spec), rows_(std::move(rows)), text_(std::move(text)) {
  require(!spec.codec->book_of_data() && spec.codec->scales() == 1,
          "a codec with a book of its own and a scale a block");
}

BlockCodes::BlockCodes(float threshold, Rows rows, std::string text)
    : spec_(codec("int8")),
      by_rows_(true),
      threshold_(threshold),
      rows_(std::move(rows)),
      text_(std::move(text)) {
  require(threshold >= 0, "a threshold of at least 0");
}

CodeSpec BlockCodes::spec(int64_t width) const {
  return by_rows_ ? CodeSpec(*spec_.codec, width) : spec_;
}

std::string BlockCodes::text() const {
  if (!text_.empty()) return text_;
  if (by_rows_) return int8_form(threshold_);
  return fmt::format("{}{}", spec_.codec->name, spec_.doubled ? "-double" : "");
}

std::string BlockCodes::of_products() const {
  if (!by_rows_) return "";
  return threshold_ > 0
             ? fmt::format("their inputs below {} are rounded to int8, row by row", threshold_)
             : "their inputs are rounded to int8, row by row";
}

int64_t BlockCodes::bytes(int64_t rows, int64_t width) const {
  const CodeSpec of = spec(width);
  const int64_t n = rows * width, blocks = of.blocks(n);
  int64_t sum = round_up(of.code_bytes(n), kPartAlignment);
  if (of.doubled)
    sum += round_up(4 * ceil_div(blocks, kDoubledBlock), kPartAlignment) +
           round_up(blocks, kPartAlignment) + 4;
  else
    sum += 4 * blocks;
  return round_up(sum, kSpanAlignment);
}

std::vector<uint8_t> BlockCodes::pack(const Codes& from, int64_t rows, int64_t width) const {
  std::vector<uint8_t> out(static_cast<size_t>(bytes(rows, width)), 0);
  View whole;
  whole.data = out.data();
  whole.shape = {bytes(rows, width)};
  whole.dtype = DType::u8;
  whole.place = Place::cpu;
  const Coded to = parts_of(whole, rows * width, spec(width));
  const auto copy = [](const View& v, const void* data, size_t bytes) {
    require(static_cast<int64_t>(bytes) == v.bytes(), "codes of this spec");
    std::memcpy(v.data, data, bytes);
  };
  copy(to.codes, from.codes.data(), from.codes.size());
  copy(to.scales, from.scales.data(), from.scales.size() * sizeof(float));
  if (spec_.doubled) {
    copy(to.scale_codes, from.scale_codes.data(), from.scale_codes.size());
    copy(to.offset, &from.offset, sizeof(float));
  }
  return out;
}

void BlockCodes::encode(Context& ctx, const View& codes, const View& values) const {
  const CodeSpec of = spec(values.shape.last());
  const Coded to = parts_of(codes, values.elements(), of);
  if (!of_f16()) return quantise(ctx, to, values, of);
  const Tensor half =
      ctx.tensor(Name("weights.half"), values.shape, DType::f16, Category::workspace);
  cast(ctx, half, values);
  quantise(ctx, to, half, of);
}

void BlockCodes::decode(Context& ctx, const View& values, const View& codes) const {
  const CodeSpec of = spec(values.shape.last());
  dequantise(ctx, values, parts_of(codes, values.elements(), of), of);
}

void BlockCodes::round_trip(std::vector<float>& values, int64_t width, int threads) const {
  const auto n = static_cast<int64_t>(values.size());
  if (of_f16())
    for (float& x : values) x = to_f32(from_f32<f16>(x));
  std::vector<std::byte> back;
  encode_tensor(values.data(), n, DType::f32, spec(width), threads, back);
  std::memcpy(values.data(), back.data(), back.size());
}

Int8Weight::Rows BlockCodes::int8_rows(const View& codes, int64_t rows, int64_t width) const {
  if (!by_rows_) return {};
  const Coded parts = parts_of(codes, rows * width, spec(width));
  return {parts.codes.reshaped({rows, width}), parts.scales};
}

}  // namespace snug
