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
  // Blocks of one kind throughout (most of the code space) share one block for each kind.
  std::vector<uint8_t> blocks;
  std::array<int, 256> uniform{};
  uniform.fill(-1);
  int range = 0;
  for (uint32_t block = 0; block < 0x1100; ++block) {
    uint8_t kinds[256];
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t code = block << 8 | i;
      while (range + 1 < kCharRangeCount && kCharRanges[range + 1] >> 8 <= code) ++range;
      kinds[i] = static_cast<uint8_t>(kCharRanges[range] & 0xFF);
    }
    const bool same = std::all_of(kinds, kinds + 256, [&](uint8_t k) { return k == kinds[0]; });
    int& shared = uniform[kinds[0]];
    if (same && shared >= 0) {
      block_of_[block] = static_cast<uint16_t>(shared);
      continue;
    }
    const auto number = static_cast<uint16_t>(blocks.size() / 256);
    if (same) shared = number;
    block_of_[block] = number;
    blocks.insert(blocks.end(), kinds, kinds + 256);
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
