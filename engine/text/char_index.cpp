#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include "engine/text/unicode_table.h"

namespace snug {

const char* const kCategoryNames[kCategoryCount] = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"};

CharIndex::CharIndex() {
  // Blocks of one kind throughout (most of the code space) share one block for each kind, and are
  // not filled to see it: walking 1.1 million code points was 25 million instructions of every
  // command that reads a tokenizer, of 110 in a training run of two tiny layers.
  std::vector<uint8_t> blocks;
  std::array<int, 256> uniform{};
  uniform.fill(-1);
  int range = 0;
  const auto end_of = [](int r) {
    return r + 1 < kCharRangeCount ? kCharRanges[r + 1] >> 8 : uint32_t{0x110000};
  };
  for (uint32_t block = 0; block < 0x1100; ++block) {
    const uint32_t first = block << 8, end = first + 256;
    while (end_of(range) <= first) ++range;
    const auto kind_of = [](int r) { return static_cast<uint8_t>(kCharRanges[r] & 0xFF); };
    const bool same = end_of(range) >= end;
    int& shared = uniform[kind_of(range)];
    if (same && shared >= 0) {
      block_of_[block] = static_cast<uint16_t>(shared);
      continue;
    }
    const auto number = static_cast<uint16_t>(blocks.size() / 256);
    if (same) shared = number;
    block_of_[block] = number;
    for (uint32_t code = first; code < end;) {
      while (end_of(range) <= code) ++range;
      const uint32_t next = std::min(end_of(range), end);
      blocks.insert(blocks.end(), next - code, kind_of(range));
      code = next;
    }
  }
  blocks_ = new uint8_t[blocks.size()];
  std::memcpy(blocks_, blocks.data(), blocks.size());
}

const CharIndex& CharIndex::get() {
  static const CharIndex* const index = new CharIndex;
  return *index;
}

uint16_t char_kind(char32_t code) {
  return kCharKinds[CharIndex::get().kind_index(code)];
}

}  // namespace snug
