// The rows of a batch in order of the row of a table that each is added to, then of their own
// number: what belongs together is side by side. A radix sort from the lowest digit on, eight bits
// a pass, each of them stable: counts of every tile of rows, where each digit of each tile begins,
// then every row to its place. Counts are integers, so atomics give the same whoever comes first.
#pragma once

#include <bit>

#include "engine/core/units.h"
#include "engine/simt/map.h"
#include "engine/simt/reduce.h"
#include "layers/ops/embedding_simt.h"
#include "layers/ops/row_positions_device.h"

namespace snug {
inline namespace SIMT_SIDE {

struct TokenOf {
  const int32_t* ids;
  __device__ int64_t operator()(int64_t row) const { return ids[row]; }
};

inline constexpr int kDigits = 256, kDigitBits = 8;

// What a pass reads: the key of a row above the row's number. Keys outside the table count as
// `limit`, the last one.
template <class Key>
struct KeyedRows {
  Key key;
  int64_t limit;
  __device__ int64_t operator()(int64_t row) const {
    const int64_t k = key(row);
    return (k < 0 || k >= limit ? limit : k) << 32 | row;
  }
};
struct OrderedRows {
  const int64_t* order;
  __device__ int64_t operator()(int64_t i) const { return order[i]; }
};

__device__ inline int digit_of(int64_t keyed, int pass) {
  return static_cast<int>(keyed >> (32 + pass * kDigitBits) & (kDigits - 1));
}

// counts[digit][tile]
template <class Source>
__global__ void row_digits_kernel(int32_t* counts, Source source, int pass, int64_t n,
                                  int64_t tiles) {
  SHARED_ARRAY(int, bins, kDigits);
  for (int d = simt::thread(); d < kDigits; d += simt::threads()) bins[d] = 0;
  simt::sync_threads();
  for (int i = simt::thread(); i < kSortedRows; i += simt::threads()) {
    const int64_t at = simt::block() * kSortedRows + i;
    if (at < n) simt::atomic_add(bins, digit_of(source(at), pass), 1);
  }
  simt::sync_threads();
  for (int d = simt::thread(); d < kDigits; d += simt::threads())
    counts[d * tiles + simt::block()] = bins[d];
}

// One block: every count becomes the sum of those before.
__global__ void digit_places_kernel(int32_t* counts, int64_t n) {
  constexpr int kOwn = 8;  // neighbours a thread takes at a time
  SHARED_ARRAY(int, sums, simt::kWarp);
  int before = 0;
  for (int64_t base = 0; base < n; base += simt::threads() * kOwn) {
    const int64_t first = base + simt::thread() * kOwn;
    int own[kOwn], sum = 0;
    for (int k = 0; k < kOwn; ++k) {
      own[k] = first + k < n ? counts[first + k] : 0;
      sum += own[k];
    }
    const int scanned = simt::warp_scan(sum);
    if (simt::lane() == simt::kWarp - 1) sums[simt::warp()] = scanned;
    simt::sync_threads();
    int at = before + scanned - sum;
    for (int w = 0; w < simt::warps(); ++w) {
      const int of_warp = sums[w];
      if (w < simt::warp()) at += of_warp;
      before += of_warp;
    }
    simt::sync_threads();
    for (int k = 0; k < kOwn; ++k) {
      if (first + k < n) counts[first + k] = at;
      at += own[k];
    }
  }
}

// A warp takes neighbouring rows of the tile, 32 at a time in order.
template <class Source>
__global__ void order_rows_kernel(int64_t* order, const int32_t* places, Source source, int pass,
                                  int64_t n, int64_t tiles) {
  const auto next = simt::dynamic_smem<int>();  // (warps, digits): where the next one goes
  const int share = (kSortedRows / simt::warps() + simt::kWarp - 1) / simt::kWarp * simt::kWarp;
  const int64_t tile = simt::block() * kSortedRows;
  int64_t end = tile + (simt::warp() + 1) * share;
  if (end > tile + kSortedRows) end = tile + kSortedRows;
  if (end > n) end = n;
  const int64_t begin = tile + simt::warp() * share;
  const int mine = simt::warp() * kDigits;
  for (int d = simt::lane(); d < kDigits; d += simt::kWarp) next[mine + d] = 0;
  simt::sync_warp();
  for (int64_t i = begin + simt::lane(); i < end; i += simt::kWarp)
    simt::atomic_add(next, mine + digit_of(source(i), pass), 1);
  simt::sync_threads();
  for (int d = simt::thread(); d < kDigits; d += simt::threads()) {
    int at = places[d * tiles + simt::block()];
    for (int w = 0; w < simt::warps(); ++w) {
      const int count = next[w * kDigits + d];
      next[w * kDigits + d] = at;
      at += count;
    }
  }
  simt::sync_threads();
  for (int64_t base = begin; base < end; base += simt::kWarp) {
    const bool exists = base + simt::lane() < end;
    const int64_t keyed = exists ? source(base + simt::lane()) : 0;
    const int digit = digit_of(keyed, pass);
    uint32_t alike = simt::ballot(exists);  // lanes of the same digit
    for (int bit = 0; bit < kDigitBits; ++bit) {
      const uint32_t set = simt::ballot((digit >> bit & 1) != 0);
      alike &= digit >> bit & 1 ? set : ~set;
    }
    const int rank = simt::count_bits(alike & ((1u << simt::lane()) - 1u));
    if (exists) order[next[mine + digit] + rank] = keyed;
    simt::sync_warp();
    if (exists && rank == 0) next[mine + digit] += simt::count_bits(alike);
    simt::sync_warp();
  }
}

// The order of n rows by their keys in [0, limit), those outside last: key << 32 | row. It lies in
// `workspace`, embedding_sort_words(n) i64.
template <class Key, class Queue>
const int64_t* sorted_rows(Queue& queue, const View& workspace, const Key& key, int64_t limit,
                           int64_t n, int threads) {
  const int64_t tiles = ceil_div(n, int64_t{kSortedRows});
  int64_t* const halves[2] = {workspace.as<int64_t>(), workspace.as<int64_t>() + n};
  auto* const counts = reinterpret_cast<int32_t*>(halves[1] + n);
  const int passes =
      ceil_div(static_cast<int>(std::bit_width(static_cast<uint64_t>(limit))), kDigitBits);
  const auto sort = [&](const auto& source, int pass) {
    using Source = std::decay_t<decltype(source)>;
    simt::launch(queue, {.blocks = tiles, .threads = threads}, "row_digits",
                 row_digits_kernel<Source>, counts, source, pass, n, tiles);
    simt::launch(queue, {.blocks = tiles > 0 ? 1 : 0, .threads = threads}, "digit_places",
                 digit_places_kernel, counts, kDigits * tiles);
    simt::launch(queue,
                 {.blocks = tiles,
                  .threads = threads,
                  .shared_bytes = threads / simt::kWarp * kDigits * int64_t{sizeof(int)}},
                 "order_rows", order_rows_kernel<Source>, halves[pass % 2],
                 static_cast<const int32_t*>(counts), source, pass, n, tiles);
  };
  sort(KeyedRows<Key>{key, limit}, 0);
  for (int pass = 1; pass < passes; ++pass) sort(OrderedRows{halves[(pass - 1) % 2]}, pass);
  return halves[(passes - 1) % 2];
}

}  // namespace SIMT_SIDE
}  // namespace snug
