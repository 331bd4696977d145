// Sorts many keys by their bytes, digit by digit: labels of the solvers are sorted by the thousand
// for every layer, and bytes take few distinct bits.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace snug {

// By key.bytes, equal ones in the order they had. `spare` is room to work in.
template <class Key>
void sort_by_bytes(std::vector<Key>& keys, std::vector<Key>& spare) {
  if (keys.empty()) return;
  int64_t least = keys.front().bytes;
  for (const Key& key : keys) least = std::min(least, key.bytes);
  uint64_t used = 0;  // bits in which any differs from the least
  for (const Key& key : keys) used |= static_cast<uint64_t>(key.bytes - least);
  if (used == 0) return;
  spare.resize(keys.size());
  constexpr int kBits = 8;
  const int end = 64 - std::countl_zero(used);
  for (int shift = std::countr_zero(used); shift < end; shift += kBits) {
    const auto digit = [&](const Key& key) {
      return (static_cast<uint64_t>(key.bytes - least) >> shift) & ((1u << kBits) - 1);
    };
    std::array<size_t, (1 << kBits) + 1> begin{};
    for (const Key& key : keys) ++begin[digit(key) + 1];
    for (size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
    for (const Key& key : keys) spare[begin[digit(key)]++] = key;
    keys.swap(spare);
  }
}

}  // namespace snug
