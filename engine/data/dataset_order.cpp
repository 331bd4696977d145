#include "engine/data/dataset_order.h"

#include <algorithm>
#include <bit>

#include "engine/core/error.h"

namespace snug {
namespace {

constexpr int kRounds = 8;
// Halves of few bits would make the network a poor shuffle, so that tiny orders walk a larger
// domain.
constexpr int kMinBits = 8;

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes every output
// bit.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

}  // namespace

PermutedOrder::PermutedOrder(int64_t n, uint64_t seed) : n_(n), seed_(seed) {
  require(n >= 1 && n <= (int64_t{1} << 62), "an order of 1 to 2^62 samples");
  const int bits =
      std::max(kMinBits, static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1))));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
}

int64_t PermutedOrder::at(int64_t epoch, int64_t i) const {
  const uint64_t key = mix(mix(seed_ + kGolden) ^ (static_cast<uint64_t>(epoch) * kGolden));
  const uint64_t left_mask = (uint64_t{1} << left_bits_) - 1;
  const uint64_t right_mask = (uint64_t{1} << right_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> right_bits_, right = x & right_mask;
    // Rounds change the halves in turn, so that they may differ in width; each one is its own
    // inverse given the other half, hence the whole is a permutation of the domain.
    for (uint64_t r = 0; r < kRounds; r += 2) {
      left ^= mix(key + r * kGolden + right) & left_mask;
      right ^= mix(key + (r + 1) * kGolden + left) & right_mask;
    }
    x = (left << right_bits_) | right;
  } while (x >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(x);
}

}  // namespace snug
