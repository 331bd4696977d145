// How a product is cut: what the threads share, what each keeps for itself, and how many floats of
// scratch that takes. Blocks only decide where a chain of sums pauses, never its order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/blas/matmul_pack.h"
#include "engine/blas/matmul_tile.h"

namespace snug::blas {

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
inline int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

// Limits, in lanes and 4-byte units. With a kernel's chunk of A (640 KiB of an L2 of 1 MiB) lives a
// panel of B (32 columns by the kernel's depth: 128 KiB, 384 KiB at its `whole`). kShared: B's
// block and the tiles that wait for more of K, both read from L3; the wider B's block, the less
// often A is packed again.
inline constexpr int64_t kShared = 9 << 18;  // 9 MiB
inline constexpr int64_t kWideWaiting = 1536;

// Few rows: B is used so little that it is not worth a block of its own; each thread packs a slice
// of B that stays near, and uses it at once. A packed B is read where it is.
inline constexpr int64_t kSlice = 32 * 1024;  // units of B in a slice: 128 KiB
inline constexpr int64_t kSliceDepth = 4096;  // units of A's k kept packed

inline constexpr int64_t kLine = 16;  // floats in a cache line

struct Blocking {
  bool few_rows, packed;  // packed: B is, as a whole
  bool own_copy;          // B is packed into scratch as a whole, then used as if it had come so
  int threads;
  int64_t units;                         // of K, in whole steps of the kernel
  int64_t depth, depth_blocks;           // units per block of K
  int64_t wide;                          // columns per block of N, a multiple of the tile's
  int64_t tall;                          // rows per block of M
  int64_t chunk;                         // rows of A packed at once by a thread
  int64_t a_floats, b_floats, t_floats;  // scratch: A, B, waiting tiles
  // What a thread has for itself: A always; B's slice with few rows; waiting tiles with a packed B.
};

// The extent cut into equal blocks of whole tiles, none above the limit.
inline int64_t even_block(int64_t extent, int64_t limit, int64_t tile) {
  if (extent <= 0) return tile;
  const int64_t tiles = ceil_div(extent, tile);
  const int64_t blocks = ceil_div(tiles, std::max<int64_t>(1, limit / tile));
  return ceil_div(tiles, blocks) * tile;
}

inline int64_t units_of(int64_t K, const TileKernel& kernel) {
  return round_up(kernel.pairs ? ceil_div(K, 2) : K, kernel.step);
}

// along_k: neighbours in A's memory are neighbours in k.
inline Blocking make_blocking(int64_t M, int64_t N, int64_t K, bool along_k, bool b_packed,
                              const TileKernel& kernel, int threads) {
  Blocking s{};
  s.packed = b_packed;
  s.units = units_of(K, kernel);
  const int64_t row_tiles = ceil_div(M, kernel.rows), col_tiles = ceil_div(N, kernel.cols);
  // A thread costs a few microseconds to wake and to wait for.
  const double work =
      static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(s.units);
  const int64_t useful = work < 64e3 ? 1 : std::max<int64_t>(1, row_tiles * col_tiles);
  s.threads = static_cast<int>(std::min<int64_t>(threads, useful));
  s.few_rows = M <= 2 * kernel.rows;
  if (s.few_rows) {
    s.depth = std::min(s.units, kSliceDepth);
    s.depth_blocks = ceil_div(s.units, s.depth);
    s.a_floats = round_up(M, kernel.row_step) * s.depth + kPackSpill;
    s.b_floats = b_packed ? 0 : std::min(kSlice, col_tiles * kernel.cols * s.units);
    return s;
  }
  const int64_t whole = along_k ? kernel.whole : kernel.whole_turned;
  const auto cut = [&](int64_t depth) {
    s.depth = round_up(ceil_div(s.units, ceil_div(s.units, depth)), kernel.step);
    s.depth_blocks = ceil_div(s.units, s.depth);  // of equal depth, none empty
    s.chunk = std::min(kernel.chunk / s.depth, kernel.chunk_rows) / kernel.rows * kernel.rows;
  };
  cut(s.units <= whole ? whole : kernel.depth);
  // Blocks of less depth make chunks taller, so that B crosses from memory less often, and what
  // waits more often: taken where that saves a fifth of both.
  const auto crossing = [&] {
    const int64_t chunks = round_up(ceil_div(row_tiles, s.chunk / kernel.rows), s.threads);
    return chunks * s.units + (s.depth_blocks - 1) * row_tiles * kernel.rows;
  };
  if (kernel.shallow > 0 && s.depth_blocks > 1) {
    const int64_t deep = crossing();
    cut(kernel.shallow);
    if (5 * crossing() > 4 * deep) cut(kernel.depth);
  }
  const bool waits = s.depth_blocks > 1;
  s.tall = row_tiles * kernel.rows;
  const int64_t chunk = std::min(s.tall, s.chunk), width = col_tiles * kernel.cols;
  if (b_packed) {
    s.chunk = chunk;
    s.wide = even_block(N, waits ? kShared / s.threads / s.chunk : N + kernel.cols, kernel.cols);
    s.t_floats = waits ? s.chunk * s.wide : 0;
  } else if (kernel.copies_b && waits && width * (s.units + s.threads * chunk) <= kShared) {
    // All of B and a chunk's waiting tiles for each thread, if there is room: B and A are packed
    // once, no thread waits for another between blocks of K, and what waits stays near.
    s.own_copy = true;
    s.chunk = chunk;
    s.wide = width;
    s.b_floats = width * s.units;
    s.t_floats = chunk * width;
  } else {
    s.wide = even_block(N, waits ? kWideWaiting : kShared / s.depth, kernel.cols);
    if (waits) s.tall = even_block(M, kShared / s.wide - s.depth, kernel.rows);
    s.chunk = std::min(s.tall, s.chunk);
    s.b_floats = s.wide * s.depth;
    s.t_floats = waits ? s.tall * s.wide : 0;
  }
  s.a_floats = s.chunk * s.depth + kPackSpill;
  return s;
}

// Units of A and B that are packed in all: B once for every block of M, A once for every block of
// N. That groups of columns of the grid pack A each for itself is left out.
inline int64_t packed_units(const Blocking& s, int64_t M, int64_t N) {
  if (s.few_rows || s.own_copy) return (M + N) * s.units;
  return (N * ceil_div(M, s.tall) + M * ceil_div(N, s.wide)) * s.units;
}

// The gradient of a weight that is wider than tall: A and B both lie across k, so C = A B is as
// well C^T = B^T A^T, every sum with the same terms in the same order. Whether that is worth it, by
// the shape alone: a fifth less to pack. GPT-2's dW (768, 3072) over 4096 tokens packs 62 MB of
// bf16 as it is and 38 turned. Sums of few k do not pay for being turned.
inline constexpr int64_t kTurnUnits = 1024;
inline bool turning_pays(int64_t M, int64_t N, int64_t K, const TileKernel& kernel, int threads) {
  if (N <= M || units_of(K, kernel) < kTurnUnits) return false;
  const Blocking as_is = make_blocking(M, N, K, false, false, kernel, threads);
  const Blocking turned = make_blocking(N, M, K, false, false, kernel, threads);
  return !as_is.few_rows && !turned.few_rows &&
         5 * packed_units(turned, N, M) < 4 * packed_units(as_is, M, N);
}

inline int64_t lines(int64_t floats) {
  return round_up(floats, kLine);
}

inline int64_t thread_floats(const Blocking& s) {
  return lines(s.a_floats) + (s.few_rows ? lines(s.b_floats) : 0) +
         (s.packed || s.own_copy ? lines(s.t_floats) : 0);
}
inline int64_t shared_floats(const Blocking& s) {
  if (s.few_rows || s.packed) return 0;
  return lines(s.b_floats) + (s.own_copy ? 0 : lines(s.t_floats));
}

// Floats that every product of at most so many rows and so deep a K has enough of, in either layout
// of A: micro-batches of fewer rows than planned use what was planned. Above what make_blocking's
// cuts of these very extents take by what another cut of less could.
inline int64_t most_few_rows(int64_t M, int64_t N, int64_t K, bool b_packed,
                             const TileKernel& kernel, int threads) {
  const int64_t units = units_of(K, kernel), width = round_up(N, kernel.cols);
  const int64_t rows = std::min<int64_t>(M, 2 * kernel.rows);
  const int64_t busy =
      std::min<int64_t>(threads, ceil_div(rows, kernel.rows) * ceil_div(N, kernel.cols));
  const int64_t a = round_up(rows, kernel.row_step) * std::min(units, kSliceDepth) + kPackSpill;
  return busy * (lines(a) + (b_packed ? 0 : lines(std::min(kSlice, width * units))));
}

inline int64_t most_many_rows(int64_t M, int64_t N, int64_t K, bool b_packed,
                              const TileKernel& kernel, int threads) {
  if (M <= 2 * kernel.rows) return 0;
  const int64_t units = units_of(K, kernel), width = round_up(N, kernel.cols);
  const int64_t tall = round_up(M, kernel.rows);
  const int64_t busy =
      std::min<int64_t>(threads, ceil_div(M, kernel.rows) * ceil_div(N, kernel.cols));
  const int64_t whole = std::max(kernel.whole, kernel.whole_turned);
  const bool waits = units > std::min(kernel.whole, kernel.whole_turned);
  const int64_t depth = std::min(units, std::max({whole, kernel.depth, kernel.shallow}));
  const int64_t chunk = std::min(kernel.chunk_rows, tall);
  const int64_t a = busy * lines(std::min(kernel.chunk, chunk * depth) + kPackSpill);
  const int64_t slack = (busy + 2) * kLine;
  // Tiles that wait: a block of columns is never narrower than a tile.
  if (b_packed)
    return a + slack +
           (waits ? std::max(std::min(kShared, busy * chunk * width), busy * chunk * kernel.cols)
                  : 0);
  int64_t most = std::min(std::max(kShared, kernel.cols * depth), width * depth);
  if (waits) {
    const int64_t wide = std::min(width, round_up(kWideWaiting, kernel.cols));
    const int64_t part = std::min(units, std::max(kernel.depth, kernel.shallow));
    most = std::max(most,
                    std::min(std::max(kShared, wide * (part + kernel.rows)), wide * (part + tall)));
    if (kernel.copies_b) most = std::max(most, std::min(kShared, width * (units + busy * chunk)));
  }
  return a + slack + most;
}

inline int64_t most_floats(int64_t M, int64_t N, int64_t K, bool b_packed, const TileKernel& kernel,
                           int threads) {
  int64_t most = std::max(most_few_rows(M, N, K, b_packed, kernel, threads),
                          most_many_rows(M, N, K, b_packed, kernel, threads));
  // Turned, N's place is M's.
  if (!b_packed && units_of(K, kernel) >= kTurnUnits)
    most = std::max(most, most_many_rows(N, M, K, false, kernel, threads));
  return most;
}

}  // namespace snug::blas
