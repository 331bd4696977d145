#include "quant/weight_codes.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/core/error.h"
#include "engine/core/units.h"
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

BlockCodes::BlockCodes(const CodeSpec& spec, Rows rows) : spec_(spec), rows_(std::move(rows)) {
  require(!spec.codec->book_of_data() && spec.codec->scales() == 1,
          "a codec with a book of its own and a scale a block");
}

std::string BlockCodes::text() const {
  return fmt::format("{}{}", spec_.codec->name, spec_.doubled ? "-double" : "");
}

int64_t BlockCodes::bytes(int64_t n) const {
  const int64_t blocks = spec_.blocks(n);
  int64_t sum = round_up(spec_.code_bytes(n), kPartAlignment);
  if (spec_.doubled)
    sum += round_up(4 * ceil_div(blocks, kDoubledBlock), kPartAlignment) +
           round_up(blocks, kPartAlignment) + 4;
  else
    sum += 4 * blocks;
  return round_up(sum, kSpanAlignment);
}

std::vector<uint8_t> BlockCodes::pack(const Codes& from, int64_t elements) const {
  std::vector<uint8_t> out(static_cast<size_t>(bytes(elements)), 0);
  View whole;
  whole.data = out.data();
  whole.shape = {bytes(elements)};
  whole.dtype = DType::u8;
  whole.place = Place::cpu;
  const Coded to = parts_of(whole, elements, spec_);
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
  quantise(ctx, parts_of(codes, values.elements(), spec_), values, spec_);
}

void BlockCodes::decode(Context& ctx, const View& values, const View& codes) const {
  dequantise(ctx, values, parts_of(codes, values.elements(), spec_), spec_);
}

}  // namespace snug
