// The list of codecs. A new one adds its row function and one line here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/core/error.h"
#include "engine/core/suggest.h"
#include "quant/codec.h"

namespace snug {

Codec dynamic_signed_row();
Codec dynamic_unsigned_row();
Codec dynamic4_row();
Codec linear4_unsigned_row();
Codec nf4_row();
Codec fp4_row();
Codec int8_row();
Codec min_max_row();
Codec fp8_e4m3_row();
Codec fp8_e5m2_row();
Codec quantile_row();

std::span<const Codec> codecs() {
  static const Codec rows[] = {
      dynamic_signed_row(), dynamic_unsigned_row(), nf4_row(),      fp4_row(),
      dynamic4_row(),       linear4_unsigned_row(), int8_row(),     min_max_row(),
      fp8_e4m3_row(),       fp8_e5m2_row(),         quantile_row(),
  };
  return rows;
}

const Codec& codec(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Codec& c : codecs()) {
    if (name == c.name) return c;
    known.emplace_back(c.name);
  }
  fail(ErrorCode::usage, fmt::format("a codec: {}", fmt::join(known, ", ")), std::string(name),
       suggestion(name, known, "take one of these"));
}

CodeSpec::CodeSpec(const Codec& which, int64_t elements, bool double_scales)
    : codec(&which), block(elements), doubled(double_scales) {
  const bool power = block >= 32 && block <= 4096 && (block & (block - 1)) == 0;
  if (!power && !(which.any_block && block >= 1))
    fail(ErrorCode::usage,
         which.any_block
             ? fmt::format("a block of {} of one element or more", which.name)
             : fmt::format("a block of {} of 32, 64, 128 ... or 4096 elements", which.name),
         fmt::format("a block of {} elements", block),
         fmt::format("take {}, the usual one of {}", which.block, which.name));
  if (doubled && which.scales() != 1)
    fail(ErrorCode::usage, "doubled scales of a codec that keeps one scale a block",
         fmt::format("{}, which keeps {}", which.name, which.scales()),
         "leave its scales in f32, or choose another codec");
}

int64_t CodeSpec::bytes(int64_t n) const {
  const int64_t b = blocks(n);
  const int64_t scale_bytes =
      doubled ? b + 4 * ((b + kDoubledBlock - 1) / kDoubledBlock) + 4 : 4 * b * codec->scales();
  return code_bytes(n) + scale_bytes + (codec->book_of_data() ? 4 * kMaxCodes : 0);
}

}  // namespace snug
