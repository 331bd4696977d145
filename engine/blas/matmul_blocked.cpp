// The blocked product (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"):
// blocks of A and B are packed so that the tile kernel reads them in order from near caches.
//
// Sums stay fp32 until K is finished: where K needs more than one block, unfinished tiles wait in
// scratch, each contiguous. Blocks only decide where a chain pauses, never its order, so block
// sizes and threads change no bit of the result.
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "engine/blas/matmul_pack.h"
#include "engine/blas/matmul_tile.h"

namespace snug::blas {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

// Limits of the blocks, in lanes and 4-byte units. kDepth: a panel of B (32 x 768 x 4 = 96 KiB) and
// the chunk of A beside it (140 x 768 x 4 = 420 KiB) live in a 1 MiB L2. kWide: B's block is shared
// by the threads in L3. kTall: rows served by one packing of B when unfinished tiles must wait.
constexpr int64_t kDepth = 768, kWide = 1024, kTall = 1050, kChunkRows = 140;

// Few rows: B is used so little that it is not worth a block of its own; each thread packs a slice
// of B that stays near, and uses it at once.
constexpr int64_t kSlice = 32 * 1024;  // units of B in a slice: 128 KiB
constexpr int64_t kSliceDepth = 4096;  // units of A's k kept packed

struct Blocking {
  bool few_rows;
  int threads;
  int64_t units;                         // of K
  int64_t depth, depth_blocks;           // units per block of K
  int64_t wide;                          // columns per block of N, a multiple of the tile's
  int64_t tall;                          // rows per block of M
  int64_t chunk;                         // rows of A packed at once by a thread
  int64_t a_floats, b_floats, t_floats;  // scratch: A and slice per thread, B, waiting tiles
};

// The extent cut into equal blocks of whole tiles, none above the limit.
int64_t even_block(int64_t extent, int64_t limit, int64_t tile) {
  if (extent <= 0) return tile;
  const int64_t tiles = ceil_div(extent, tile);
  const int64_t blocks = ceil_div(tiles, std::max<int64_t>(1, limit / tile));
  return ceil_div(tiles, blocks) * tile;
}

Blocking make_blocking(int64_t M, int64_t N, int64_t K, const TileKernel& kernel, int threads) {
  Blocking s{};
  s.units = kernel.pairs ? ceil_div(K, 2) : K;
  const int64_t row_tiles = ceil_div(M, kernel.rows), col_tiles = ceil_div(N, kernel.cols);
  // A thread costs a few microseconds to wake and to wait for.
  const double work =
      static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(s.units);
  const int64_t useful = work < 64e3 ? 1 : std::max<int64_t>(1, row_tiles * col_tiles);
  s.threads = static_cast<int>(std::min<int64_t>(threads, useful));
  s.few_rows = M <= 2 * kernel.rows;
  if (s.few_rows) {
    s.depth = std::min(s.units, kSliceDepth);
    s.a_floats = M * s.depth + kPackSpill;
    s.b_floats = std::min(kSlice, ceil_div(N, kernel.cols) * kernel.cols * s.units);
    return s;
  }
  s.depth =
      std::max<int64_t>(1, ceil_div(s.units, std::max<int64_t>(1, ceil_div(s.units, kDepth))));
  s.depth_blocks = std::max<int64_t>(1, ceil_div(s.units, s.depth));  // of equal depth, none empty
  s.wide = even_block(N, kWide, kernel.cols);
  s.tall = s.depth_blocks == 1 ? row_tiles * kernel.rows : even_block(M, kTall, kernel.rows);
  s.chunk = std::min(s.tall, kChunkRows / kernel.rows * kernel.rows);
  s.a_floats = s.chunk * s.depth + kPackSpill;
  s.b_floats = s.wide * s.depth;
  s.t_floats = s.depth_blocks == 1 ? 0 : s.tall * s.wide;
  return s;
}

constexpr int64_t kLine = 16;  // floats in a cache line
int64_t lines(int64_t floats) {
  return ceil_div(floats, kLine) * kLine;
}

int64_t scratch_floats(const Blocking& s) {
  if (s.few_rows) return s.threads * (lines(s.a_floats) + lines(s.b_floats));
  return s.threads * lines(s.a_floats) + lines(s.b_floats) + lines(s.t_floats);
}

struct Range {
  int64_t begin, end;
};
Range share(int64_t items, int64_t parts, int64_t part) {
  return {items * part / parts, items * (part + 1) / parts};
}

// Threads as a grid over row tiles and column tiles: the grid whose busiest thread has least to do.
int64_t grid_columns(int64_t row_tiles, int64_t col_tiles, int64_t threads) {
  int64_t best = 1, least = -1;
  for (int64_t c = 1; c <= threads; ++c) {
    if (threads % c != 0) continue;
    const int64_t load = ceil_div(row_tiles, threads / c) * ceil_div(col_tiles, c);
    if (least < 0 || load < least) least = load, best = c;
  }
  return best;
}

// What the threads of one product share. Work is handed out piece by piece, so that a thread the
// system holds back delays the others by one piece at most; which thread does a piece changes no
// result. The two lists are used in turn, with a wait after each, and the one not in use is put
// back to its start.
struct Team {
  std::atomic<int64_t> pack{0}, multiply{0};
  std::atomic<int64_t> arrived{0}, round{0};

  // Waits for all. Spins for some microseconds, then gives the core away: where the machine is busy
  // with other work, a spinning waiter would keep the one it waits for from running.
  void wait(int64_t threads) {
    if (threads == 1) return;
    const int64_t now = round.load();
    if (arrived.fetch_add(1) + 1 == threads) {
      arrived = 0;
      round = now + 1;
      return;
    }
    for (int spins = 0; round.load() == now; ++spins) {
      if (spins < 1000)
        _mm_pause();
      else
        std::this_thread::yield();
    }
  }
};

struct Task {
  const MatmulProblem& p;
  const TileKernel& kernel;
  const Blocking& s;
  float* base;  // 64-byte aligned scratch
  Team& team;

  int64_t k_of(int64_t unit) const { return kernel.pairs ? 2 * unit : unit; }
  int64_t k_count(int64_t unit0, int64_t count) const {
    return std::min(k_of(unit0 + count), p.K) - k_of(unit0);
  }
  void pack_a(int64_t m0, int64_t rows, int64_t u0, int64_t units, float* out) const {
    const PackSource src{p.a.data, p.a.dtype, p.a.row_stride, p.a.col_stride};
    pack_block(src, kernel.pairs, m0, rows, k_of(u0), k_count(u0, units), kernel.rows,
               kernel.rows * units, false, out);
  }
  void pack_b(int64_t n0, int64_t cols, int64_t u0, int64_t units, float* out) const {
    const PackSource src{p.b.data, p.b.dtype, p.b.col_stride, p.b.row_stride};
    pack_block(src, kernel.pairs, n0, cols, k_of(u0), k_count(u0, units), kernel.cols,
               kernel.cols * units, true, out);
  }
};

void run_blocked(const Task& t, int64_t thread, int64_t threads) {
  const MatmulProblem& p = t.p;
  const Blocking& s = t.s;
  const int64_t R = t.kernel.rows, W = t.kernel.cols;
  float* b_block = t.base;
  float* waiting = b_block + lines(s.b_floats);
  float* a_chunk = waiting + lines(s.t_floats) + thread * lines(s.a_floats);
  alignas(64) float local[kMaxTileRows * kMaxTileCols];

  for (int64_t m0 = 0; m0 < p.M; m0 += s.tall) {
    const int64_t rows = std::min(s.tall, p.M - m0), row_tiles = ceil_div(rows, R);
    for (int64_t n0 = 0; n0 < p.N; n0 += s.wide) {
      const int64_t cols = std::min(s.wide, p.N - n0), col_tiles = ceil_div(cols, W);
      // Pieces of C: `slabs` of row tiles, none above a chunk, by `grid` groups of column tiles.
      // The last pieces of rows that want finishing are whole rows.
      const bool whole_rows = p.finish.rows != nullptr && n0 + cols == p.N;
      const int64_t grid = whole_rows ? 1 : grid_columns(row_tiles, col_tiles, threads);
      const int64_t slabs = round_up(ceil_div(row_tiles, s.chunk / R), threads / grid);
      const int64_t b_pieces = std::min(col_tiles, threads == 1 ? 1 : 4 * threads);
      for (int64_t block = 0; block < s.depth_blocks; ++block) {
        const int64_t u0 = block * s.depth, units = std::min(s.depth, s.units - u0);
        for (int64_t i; (i = t.team.pack.fetch_add(1)) < b_pieces;) {
          const Range r = share(col_tiles, b_pieces, i);
          t.pack_b(n0 + r.begin * W, std::min(r.end * W, cols) - r.begin * W, u0, units,
                   b_block + r.begin * W * units);
        }
        t.team.wait(threads);
        if (thread == 0) t.team.pack = 0;
        for (int64_t i; (i = t.team.multiply.fetch_add(1)) < slabs * grid;) {
          const Range r = share(row_tiles, slabs, i / grid), q = share(col_tiles, grid, i % grid);
          if (r.begin == r.end || q.begin == q.end) continue;
          t.pack_a(m0 + r.begin * R, std::min(r.end * R, rows) - r.begin * R, u0, units, a_chunk);
          for (int64_t tj = q.begin; tj < q.end; ++tj)
            for (int64_t ti = r.begin; ti < r.end; ++ti) {
              float* tile = s.depth_blocks == 1 ? local : waiting + (ti * col_tiles + tj) * R * W;
              const int64_t tile_rows = std::min(R, rows - ti * R);
              t.kernel.run[tile_rows - 1](units, a_chunk + (ti - r.begin) * R * units,
                                          b_block + tj * W * units, tile, block == 0);
              if (block + 1 == s.depth_blocks)
                store_tile(p, tile, W, m0 + ti * R, n0 + tj * W, tile_rows,
                           std::min(W, cols - tj * W));
            }
          if (whole_rows && block + 1 == s.depth_blocks)
            p.finish.rows(p.finish.context, m0 + r.begin * R,
                          std::min(r.end * R, rows) - r.begin * R);
        }
        t.team.wait(threads);
        if (thread == 0) t.team.multiply = 0;
      }
    }
  }
}

void run_few_rows(const Task& t, int64_t thread, int64_t threads) {
  const MatmulProblem& p = t.p;
  const Blocking& s = t.s;
  const int64_t R = t.kernel.rows, W = t.kernel.cols, row_tiles = ceil_div(p.M, R);
  float* a_block = t.base + thread * (lines(s.a_floats) + lines(s.b_floats));
  float* slice = a_block + lines(s.a_floats);
  const Range mine = share(ceil_div(p.N, W), threads, thread);
  // Neighbours in k: one panel, deep. Neighbours in n: several panels, shallow, for long runs.
  const int64_t panels = p.b.row_stride == 1 ? 1 : 8 * kMaxTileCols / W;
  const int64_t slice_depth = kSlice / (panels * W);
  alignas(64) float tiles[2][8 * kMaxTileCols * kMaxTileRows];
  int64_t packed = -1;  // the block of K that a_block holds
  for (int64_t j0 = mine.begin; j0 < mine.end; j0 += panels) {
    const int64_t j1 = std::min(j0 + panels, mine.end);
    const int64_t cols = std::min(j1 * W, p.N) - j0 * W;
    for (int64_t u0 = 0; u0 < s.units; u0 += s.depth) {
      const int64_t block_units = std::min(s.depth, s.units - u0);
      if (packed != u0) t.pack_a(0, p.M, u0, block_units, a_block);
      packed = u0;
      for (int64_t v0 = 0; v0 < block_units; v0 += slice_depth) {
        const int64_t units = std::min(slice_depth, block_units - v0);
        t.pack_b(j0 * W, cols, u0 + v0, units, slice);
        for (int64_t j = j0; j < j1; ++j)
          for (int64_t i = 0; i < row_tiles; ++i) {
            const int64_t tile_rows = std::min(R, p.M - i * R);
            t.kernel.run[tile_rows - 1](units, a_block + i * R * block_units + v0 * tile_rows,
                                        slice + (j - j0) * W * units, tiles[i] + (j - j0) * R * W,
                                        u0 + v0 == 0);
          }
      }
    }
    for (int64_t j = j0; j < j1; ++j)
      for (int64_t i = 0; i < row_tiles; ++i)
        store_tile(p, tiles[i] + (j - j0) * R * W, W, i * R, j * W, std::min(R, p.M - i * R),
                   std::min(W, p.N - j * W));
  }
  if (p.finish.rows != nullptr) {
    t.team.wait(threads);
    if (thread == 0) p.finish.rows(p.finish.context, 0, p.M);
  }
}

}  // namespace

int64_t blocked_scratch_bytes(int64_t M, int64_t N, int64_t K, const TileKernel& kernel,
                              int threads) {
  if (M <= 0 || N <= 0 || K <= 0) return 0;
  const Blocking s = make_blocking(M, N, K, kernel, threads);
  return (scratch_floats(s) + kLine) * static_cast<int64_t>(sizeof(float));
}

void matmul_blocked(const MatmulProblem& p, const TileKernel& kernel, void* scratch, int threads) {
  const Blocking s = make_blocking(p.M, p.N, p.K, kernel, threads);
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  Team team;
  const Task t{p, kernel, s, reinterpret_cast<float*>((address + 63) & ~uintptr_t{63}), team};
  const auto run = s.few_rows ? run_few_rows : run_blocked;
  if (s.threads == 1) return run(t, 0, 1);
    // Always the whole team: OpenMP ends threads when a team is smaller than the one before and
    // makes them again for the next, which takes memory from the system in the middle of a run.
#pragma omp parallel num_threads(threads)
  {
    const int parts = std::min(s.threads, omp_get_num_threads());
    if (omp_get_thread_num() < parts) run(t, omp_get_thread_num(), parts);
  }
}

}  // namespace snug::blas
