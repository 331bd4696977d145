// Lines in place of bounds (quant/map_lines.h): the entry of every float is that of the book, by the
// bounds themselves. Without AVX-512 and its bytes they are those of the other loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <vector>

#include "engine/core/rng.h"
#include "quant/block.h"
#include "quant/map_lines.h"

namespace snug::test {
namespace {

constexpr int64_t kBlock = 4096;
const char* const kMaps[] = {"dynamic8", "dynamic8_unsigned"};

// Of numbers whose largest magnitude is 1 by a first one beside them.
std::vector<uint8_t> codes_of(const Codec& c, const std::vector<float>& x) {
  std::vector<uint8_t> codes(x.size());
  std::vector<float> block(kBlock);
  std::vector<uint8_t> made(kBlock);
  for (size_t at = 0; at < x.size(); at += kBlock - 1) {
    const size_t n = std::min<size_t>(kBlock - 1, x.size() - at);
    std::fill(block.begin(), block.end(), 0.0f);
    std::copy_n(x.begin() + static_cast<ptrdiff_t>(at), n, block.begin());
    block.back() = 1;
    float scale = 0;
    encode_block(CodeSpec(c, kBlock), block.data(), kBlock, made.data(), &scale);
    EXPECT_EQ(scale, 1.0f);
    std::copy_n(made.begin(), n, codes.begin() + static_cast<ptrdiff_t>(at));
  }
  return codes;
}

int entry_by_bounds(const CodeBook& book, float x) {
  const int32_t* const end = book.bounds + book.size - 1;
  return static_cast<int>(std::lower_bound(book.bounds + 0, end, float_key(x)) - book.bounds);
}

TEST(MapLines, AreFoundOfDynamicMaps) {
  for (const Codec& c : codecs()) {
    if (c.book == nullptr) continue;
    const bool map = std::string_view(c.name).starts_with("dynamic8");
    EXPECT_EQ(map_lines(*c.book) != nullptr, map) << c.name;
  }
}

// 200 floats to either side of every bound, from both sides of 0.
TEST(MapLines, FindTheEntriesAroundEveryBound) {
  for (const char* name : kMaps) {
    const Codec& c = codec(name);
    std::vector<float> x;
    for (int k = 0; k + 1 < c.book->size; ++k)
      for (int32_t d = -200; d <= 200; ++d) {
        const float v = float_of_key(c.book->bounds[k] + d);
        if (std::abs(v) <= 1) x.push_back(v);
      }
    for (const float v :
         {0.0f, -0.0f, 1.0f, -1.0f, 0x1p-149f, 0x1p-126f, 0x1p-31f, 0x1p-32f, -0x1p-31f})
      x.push_back(v);
    const std::vector<uint8_t> codes = codes_of(c, x);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(codes[i], entry_by_bounds(*c.book, x[i])) << name << " " << x[i];
  }
}

// Whatever the scale, and whatever a product with its inverse comes to.
TEST(MapLines, FindTheEntriesOfScaledBlocks) {
  for (const char* name : kMaps) {
    const Codec& c = codec(name);
    for (int power = -148; power <= 126; ++power) {
      std::vector<float> x;
      for (int i = 0; i < 256; ++i) {
        const double v =
            static_cast<double>(
                mix64(static_cast<uint64_t>(power + 999) * 256 + static_cast<uint64_t>(i)) >> 11) *
            0x1p-53;
        const double spread = std::pow(v, i % 7);  // over all decades
        x.push_back(static_cast<float>(std::ldexp(i % 2 == 0 ? spread : -spread, power)));
        if (!c.is_signed) x.back() = std::abs(x.back());
      }
      uint8_t codes[256];
      float scale = 0;
      encode_block(CodeSpec(c, 256), x.data(), 256, codes, &scale);
      const float factor = 1.0f / std::max(scale, 1e-38f);
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(codes[i], entry_by_bounds(*c.book, x[i] * factor)) << name << " " << x[i];
      float y[256];
      decode_block(CodeSpec(c, 256), y, codes, &scale, 256);
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(y[i], c.book->values[codes[i]] * scale) << name << " " << x[i];
    }
  }
}

// All floats from -1 to 1: 3.2 * 10^9 codes of both maps.
TEST(SlowMapLines, FindTheEntryOfEveryFloat) {
  constexpr int64_t kOne = 0x3f800000, kPiece = (kBlock - 1) * 512;
  for (const char* name : kMaps) {
    const Codec& c = codec(name);
    const CodeBook& book = *c.book;
    for (const bool negative : {false, true}) {
      if (negative && !c.is_signed) continue;
      int entry = entry_by_bounds(book, negative ? -0.0f : 0.0f);
      std::vector<float> x;
      for (int64_t first = 0; first <= kOne; first += kPiece) {
        const int64_t n = std::min(kPiece, kOne + 1 - first);
        x.resize(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i)
          x[static_cast<size_t>(i)] = std::bit_cast<float>(static_cast<uint32_t>(first + i) |
                                                           (negative ? 0x80000000u : 0u));
        const std::vector<uint8_t> codes = codes_of(c, x);
        for (size_t i = 0; i < x.size(); ++i) {
          const int32_t key = float_key(x[i]);
          if (negative)
            while (entry > 0 && key <= book.bounds[entry - 1]) --entry;
          else
            while (key > book.bounds[entry]) ++entry;
          if (codes[i] != entry) FAIL() << name << " " << x[i] << " is " << int{codes[i]};
        }
      }
    }
  }
}

}  // namespace
}  // namespace snug::test
