#include "optim/resting.h"

#include <algorithm>
#include <bit>

#include "engine/kernels/loops.h"

namespace snug {

void bf16_encode(RandomKey key, int64_t first, const float* x, int64_t n, bf16* y) {
  auto* const out = reinterpret_cast<uint16_t*>(y);
  for (int64_t i = 0; i < n; i += 8) {
    const int64_t block = (first + i) / 8;
    const Philox4 words =
        random_block(key, 0, static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(block));
    for (int64_t j = i; j < std::min(n, i + 8); ++j) {
      const auto k = static_cast<uint32_t>(j - i);
      out[j] =
          bf16_at_random(std::bit_cast<uint32_t>(x[j]), words[k / 2] >> (k % 2 * 16) & 0xffffu);
    }
  }
}

void bf16_decode(float* y, const bf16* x, int64_t n) {
  pair_loops<float, bf16>().cast(y, x, n);
}

void codes_decode(const CodeSpec& spec, float* y, const uint8_t* codes, const float* scales,
                  int64_t n) {
  for (int64_t i = 0; i < n; i += spec.block)
    decode_block(spec, y + i, codes + i * spec.codec->bits / 8, scales + i / spec.block,
                 std::min(spec.block, n - i));
}

void codes_encode(const CodeSpec& spec, const float* x, int64_t n, uint8_t* codes, float* scales) {
  for (int64_t i = 0; i < n; i += spec.block)
    encode_block(spec, x + i, std::min(spec.block, n - i), codes + i * spec.codec->bits / 8,
                 scales + i / spec.block);
}

}  // namespace snug
