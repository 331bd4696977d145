// A small open-addressing map from 64-bit keys to values, for the merge table (looked up several
// times per byte of text) and the pair counts of training. Keys cannot be erased.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace snug {

template <class V>
class FlatMap64 {
 public:
  // The key that no one may use; pairs of token ids are never negative, so never all ones.
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  explicit FlatMap64(size_t expected = 8) {
    size_t capacity = 16;
    while (capacity < expected * 2) capacity *= 2;
    slots_.assign(capacity, {kEmpty, V{}});
  }

  const V* find(uint64_t key) const {
    for (size_t i = mix(key) & mask();; i = (i + 1) & mask()) {
      if (slots_[i].first == key) return &slots_[i].second;
      if (slots_[i].first == kEmpty) return nullptr;
    }
  }

  // The value of the key, default-constructed at first; valid until the next insertion.
  V& operator[](uint64_t key) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    const size_t i = place(key);
    if (slots_[i].first == kEmpty) {
      slots_[i].first = key;
      ++count_;
    }
    return slots_[i].second;
  }

  size_t size() const { return count_; }

  template <class F>
  void for_each(F&& f) {
    for (auto& slot : slots_) {
      if (slot.first != kEmpty) f(slot.first, slot.second);
    }
  }

  void clear() {
    for (auto& slot : slots_) slot = {kEmpty, V{}};
    count_ = 0;
  }

 private:
  static uint64_t mix(uint64_t x) {
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15ull;
    return x ^ (x >> 29);
  }
  size_t mask() const { return slots_.size() - 1; }
  size_t place(uint64_t key) const {
    size_t i = mix(key) & mask();
    while (slots_[i].first != kEmpty && slots_[i].first != key) i = (i + 1) & mask();
    return i;
  }
  void grow() {
    std::vector<std::pair<uint64_t, V>> old(slots_.size() * 2);
    for (auto& slot : old) slot.first = kEmpty;
    old.swap(slots_);
    for (auto& slot : old) {
      if (slot.first != kEmpty) slots_[place(slot.first)] = std::move(slot);
    }
  }

  std::vector<std::pair<uint64_t, V>> slots_;
  size_t count_ = 0;
};

// The key of a pair of token ids.
inline uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace snug
