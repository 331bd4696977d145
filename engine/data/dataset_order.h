// The shuffled order of samples: computed, not stored, so that sample k of a run is a function of
// (seed, k) alone and resuming at any k costs nothing.
#pragma once

#include <cstdint>

namespace snug {

// A shuffled order of [0, n) for every epoch, in O(1) time and memory: a Feistel network over the
// next power of two, walked until it lands below n (Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002).
class PermutedOrder {
 public:
  PermutedOrder(int64_t n, uint64_t seed);  // 1 <= n <= 2^62

  int64_t size() const { return n_; }
  int64_t at(int64_t epoch, int64_t i) const;  // place i of that epoch's order, 0 <= i < n
  int64_t operator[](int64_t k) const { return at(k / n_, k % n_); }  // sample k of a run, k >= 0

 private:
  int64_t n_;
  uint64_t seed_;
  int left_bits_ = 0, right_bits_ = 0;
};

}  // namespace snug
