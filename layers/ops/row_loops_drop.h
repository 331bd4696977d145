// Rows of dropout over the sixteen floats V; see layers/ops/row_loops.h. The including file defines
// for its instruction set U, eight 64-bit lanes, and on it uset, uadd, ushr32, ushl32, uxor3,
// umul (of the low halves), counter_steps, keep_bits; and kCounterVectors, of eight counters each,
// as many as the registers hold.
#pragma once

constexpr int64_t kMaskChannels = 64 * kCounterVectors, kMaskWords = kMaskChannels / 32;

// Where an upper half does not decide (open: 32 channels a word), the whole number does.
[[gnu::noinline, gnu::cold]] inline void settle_bits(uint32_t* bits, const uint32_t* open,
                                                     const MaskRow& row, int64_t begin) {
  for (int64_t i = 0; i < kMaskChannels; ++i) {
    const uint32_t bit = 1u << (i % 32);
    if ((open[i / 32] & bit) == 0) continue;
    bits[i / 32] &= ~bit;
    if (channel_at_least({row.k0, row.k1}, row.sample, row.position,
                         static_cast<uint32_t>(begin + i), row.threshold))
      bits[i / 32] |= bit;
  }
}

// random_block() for 8 * kCounterVectors values of channel / 8 side by side: bit i of bits[k] says
// whether channel begin + 32 k + i is kept. A word of a counter lies in the low half of a 64-bit
// lane, where the 32 x 32 -> 64 product wants it; what is in the high half is never read, so the
// low word of a product needs no masking.
inline void mask_bits(uint32_t* bits, const MaskRow& row, int64_t begin) {
  const U m0 = uset(0xD2511F53), m1 = uset(0xCD9E8D57);
  U c0[kCounterVectors], c1[kCounterVectors], c2[kCounterVectors], c3[kCounterVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kCounterVectors; ++v) {
    c0[v] = uadd(uset(static_cast<uint64_t>(begin / 8 + 8 * v)), counter_steps());
    c1[v] = uset(row.position);
    c2[v] = uset(row.sample);
    c3[v] = uset(row.sample >> 32);
  }
  uint32_t k0 = row.k0, k1 = row.k1;
  for (int round = 0; round < 10; ++round) {
    const U key0 = uset(k0), key1 = uset(k1);
#pragma GCC unroll 4
    for (int v = 0; v < kCounterVectors; ++v) {
      const U p0 = umul(c0[v], m0), p1 = umul(c2[v], m1);
      c0[v] = uxor3(ushr32(p1), c1[v], key0);
      c1[v] = p1;
      c2[v] = uxor3(ushr32(p0), c3[v], key1);
      c3[v] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  uint32_t open[kMaskWords], any = 0;
#pragma GCC unroll 4
  for (int v = 0; v < kCounterVectors; ++v) {
    keep_bits(bits + 2 * v, open + 2 * v, c0[v], ushl32(c1[v]), c2[v], ushl32(c3[v]),
              row.threshold >> 16);
    any |= open[2 * v] | open[2 * v + 1];
  }
  if (any != 0 && (row.threshold & 0xffffu) != 0) [[unlikely]]
    settle_bits(bits, open, row, begin);
}

// f(i, r, bits of these channels) for i = 0, 16, 32 ... below c.
template <class F>
inline void each_masked(const MaskRow& row, int64_t c, F&& f) {
  uint32_t bits[kMaskWords];
  int64_t begin = 0;
  for (; begin + kMaskChannels <= c; begin += kMaskChannels) {
    mask_bits(bits, row, begin);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kMaskWords; ++k) {
      f(begin + 32 * k, 16, bits[k] & 0xffffu);
      f(begin + 32 * k + 16, 16, bits[k] >> 16);
    }
  }
  if (begin == c) return;
  mask_bits(bits, row, begin);
  each16(c - begin,
         [&](int64_t i, int64_t r) { f(begin + i, r, bits[i / 32] >> (i % 32) & 0xffffu); });
}

// Chosen, not multiplied: a dropped infinity is 0.
template <class T>
void drop_row_loop(T* y, const T* x, const MaskRow& row, int64_t c) {
  const V kept = set1(row.kept);
  each_masked(row, c, [=](int64_t i, int64_t r, uint32_t bits) {
    store_lanes(y + i, keep_lanes(bits, load_lanes(x + i, r) * kept), r);
  });
}
template <class T>
void add_dropped_loop(T* y, const T* x, const T* branch, const MaskRow& row, int64_t c) {
  const V kept = set1(row.kept);
  each_masked(row, c, [=](int64_t i, int64_t r, uint32_t bits) {
    const V b = keep_lanes(bits, load_lanes(branch + i, r) * kept);
    store_lanes(y + i, load_lanes(x + i, r) + b, r);
  });
}
