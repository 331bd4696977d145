// The blocked product (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"):
// blocks of A and B are packed so that the tile kernel reads them in order from near caches.
//
// Sums stay fp32 until K is finished: where K needs more than one block, unfinished tiles wait in
// scratch, each contiguous. Blocks only decide where a chain pauses, never its order, so block
// sizes and threads change no bit of the result.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "engine/blas/matmul_blocking.h"
#include "engine/core/openmp.h"

namespace snug::blas {
namespace {

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

constexpr int64_t kFewRowsPanels = 8;

// The k that units [u0, u0 + units) stand for; the last units of K may stand for less, or for none.
struct Depth {
  int64_t k0, kc;
};
Depth depth_of(int64_t K, const TileKernel& kernel, int64_t u0, int64_t units) {
  const int64_t per = kernel.pairs ? 2 : 1;
  return {per * u0, std::min(per * (u0 + units), K) - per * u0};
}

// Columns [n0, n0 + cols) of B as panels, `stride` floats apart, zeros after the end of K.
void pack_panels(const MatrixView& b, int64_t K, const TileKernel& kernel, int64_t n0, int64_t cols,
                 int64_t u0, int64_t units, int64_t stride, float* out) {
  const PackSource src{b.data, b.dtype, b.col_stride, b.row_stride};
  const Depth d = depth_of(K, kernel, u0, units);
  pack_block(src, kernel.pairs, n0, cols, d.k0, d.kc, kernel.cols, stride, true, out);
  const int64_t filled = kernel.pairs ? ceil_div(d.kc, 2) : d.kc;
  for (int64_t j = 0; filled < units && j < ceil_div(cols, kernel.cols); ++j)
    std::fill_n(out + j * stride + filled * kernel.cols, (units - filled) * kernel.cols, 0.0f);
}

struct Task {
  const MatmulProblem& p;
  const TileKernel& kernel;
  const Blocking& s;
  float* base;  // 64-byte aligned scratch
  Team& team;
  bool turned;  // p's C lies turned: sum (m, n) belongs to c[n * ldc + m]

  float* own(int64_t thread) const { return base + shared_floats(s) + thread * thread_floats(s); }
  // Lanes of A or columns of B, from unit u0 on.
  void pack_a(int64_t m0, int64_t rows, int64_t u0, int64_t units, float* out) const {
    const PackSource src{p.a.data, p.a.dtype, p.a.row_stride, p.a.col_stride};
    const Depth d = depth_of(p.K, kernel, u0, units);
    if (kernel.row_step > 1)
      pack_row_tiles(src, m0, rows, d.k0, d.kc, units, kernel.rows, kernel.row_step, out);
    else
      pack_block(src, kernel.pairs, m0, rows, d.k0, d.kc, kernel.rows, kernel.rows * units, false,
                 out);
  }
  void pack_b(int64_t n0, int64_t cols, int64_t u0, int64_t units, float* out) const {
    pack_panels(p.b, p.K, kernel, n0, cols, u0, units, kernel.cols * units, out);
  }
  const float* packed_panel(int64_t panel, int64_t u0) const {
    const float* b = s.own_copy ? base : static_cast<const float*>(p.b_packed);
    return b + (panel * s.units + u0) * kernel.cols;
  }
};

// A packed chunk of A (row tiles `rows` of C) times panels of B (column tiles `cols`), `units`
// deep. Panels of B stand b_stride floats apart; unfinished tiles wait in rows of wait_cols tiles.
struct Multiply {
  Range rows, cols;
  int64_t units;
  const float* a;
  const float* b;
  int64_t b_stride;
  float* waiting;  // of the first tile; null: nothing waits
  int64_t wait_cols;
  bool first, last;  // block of K
};

void finish_tile(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
                 int64_t rows, int64_t cols) {
  if (!store_tile_avx512(p, tile, ld, m0, n0, rows, cols) &&
      !store_tile_avx2(p, tile, ld, m0, n0, rows, cols))
    store_tile(p, tile, ld, m0, n0, rows, cols);
}

void turn_tile(const MatmulProblem& p, const float* tile, int64_t ld, int64_t m0, int64_t n0,
               int64_t rows, int64_t cols) {
  if (!store_turned_avx512(p, tile, ld, m0, n0, rows, cols))
    store_turned(p, tile, ld, m0, n0, rows, cols);
}

// A tile's place in C, to be asked for while the tile is computed: its lines are far from all else,
// and waiting for them one tile after another is a tenth of the time of a product that sums into C.
void add_place(const MatmulProblem& p, bool turned, int64_t m0, int64_t n0, int64_t rows,
               int64_t cols, Soon& soon) {
  const int64_t size = size_of(p.c_dtype);
  if (turned) {
    soon.c = static_cast<const char*>(p.c) + (n0 * p.ldc + m0) * size;
    soon.c_stride = p.ldc * size;
    soon.c_rows = std::min(cols, p.N - n0);
    soon.c_bytes = rows * size;
    return;
  }
  if (p.c == nullptr || (p.finish.tile != nullptr && !p.accumulate) || streams_c(p)) return;
  soon.c = static_cast<const char*>(p.c) + (m0 * p.ldc + n0) * size;
  soon.c_stride = p.ldc * size;
  soon.c_rows = rows;
  soon.c_bytes = cols * size;
}

void ask_for_c(const Soon& soon) {
  for (int64_t i = 0; soon.c != nullptr && i < soon.c_rows; ++i)
    for (int64_t at = 0; at < soon.c_bytes; at += 64)
      _mm_prefetch(soon.c + i * soon.c_stride + at, _MM_HINT_T0);
}

// The i-th of n tiles asks for its part of the piece of B that follows `u1` in panel `j`. Behind
// the last piece of the last panel that is memory nobody reads.
void add_next_piece(const Multiply& m, const TileKernel& kernel, int64_t near, int64_t j,
                    int64_t u1, int64_t i, int64_t n, Soon& soon) {
  const int64_t from = u1 == m.units ? 0 : u1, panel = u1 == m.units ? j + 1 : j;
  const int64_t floats = std::min(near, m.units - from) * kernel.cols;
  const Range part = share(floats / kLine, n, i);
  soon.b = m.b + panel * m.b_stride + from * kernel.cols + part.begin * kLine;
  soon.b_lines = part.end - part.begin;
}

// The tiles of one piece of a panel of B, and what is done beside them.
struct Piece {
  const Task& t;
  const Multiply& m;
  int64_t near;    // units of a piece
  float* local;    // sums, where none wait: two tiles in turn, or all of the chunk
  int64_t tj, u0;  // column tile, first unit
  struct Done {    // to be finished when the next tile is under way
    const float* tile = nullptr;
    int64_t m0 = 0, n0 = 0, rows = 0;
  } done = {};

  int64_t units() const { return std::min(near, m.units - u0); }
  bool last() const { return m.last && u0 + units() == m.units; }
  int64_t tile_rows(int64_t i) const {
    return std::min(t.kernel.rows, t.p.M - (m.rows.begin + i) * t.kernel.rows);
  }
  int64_t tile_floats() const { return t.kernel.rows * t.kernel.cols; }
  int64_t ring() const {
    return m.waiting == nullptr && near >= m.units ? 2 : m.rows.end - m.rows.begin;
  }
  float* sums() const {
    return m.waiting == nullptr ? local : m.waiting + (tj - m.cols.begin) * tile_floats();
  }
  int64_t sums_step() const { return tile_floats() * (m.waiting == nullptr ? 1 : m.wait_cols); }
  float* tile(int64_t i) const { return sums() + i % ring() * sums_step(); }
  const float* a(int64_t i) const {
    return m.a + i * t.kernel.rows * m.units + u0 * round_up(tile_rows(i), t.kernel.row_step);
  }
  const float* b() const { return m.b + (tj - m.cols.begin) * m.b_stride + u0 * t.kernel.cols; }

  void ask(int64_t i, Soon& soon) const {
    const int64_t R = t.kernel.rows, W = t.kernel.cols;
    if (last()) add_place(t.p, t.turned, (m.rows.begin + i) * R, tj * W, tile_rows(i), W, soon);
    // A kernel asks for as many rows of C as it has of its own.
    if (soon.c_rows > R) ask_for_c(soon), soon.c = nullptr;
    // The sums of the block of K before come from far: asked for a panel ahead.
    if (m.waiting != nullptr && !m.first && u0 + units() == m.units && tj + 1 < m.cols.end)
      soon.waiting = tile(i) + tile_floats();
    if (t.kernel.asks)
      add_next_piece(m, t.kernel, near, tj - m.cols.begin, u0 + units(), i,
                     m.rows.end - m.rows.begin, soon);
  }
  void finish() {
    if (done.tile == nullptr) return;
    const auto finish = t.turned ? turn_tile : finish_tile;
    finish(t.p, done.tile, t.kernel.cols, done.m0, done.n0, done.rows,
           std::min(t.kernel.cols, t.p.N - done.n0));
    done.tile = nullptr;
  }
  // A tile is finished when the next one is under way: what a tile unit has just stored cannot be
  // read at once, and meanwhile the unit works.
  void under_way(int64_t i) {
    finish();
    if (last())
      done = {tile(i), (m.rows.begin + i) * t.kernel.rows, tj * t.kernel.cols, tile_rows(i)};
  }

  // The tiles from i on that are full go together, where the kernel takes them so.
  int64_t run_full(int64_t i) {
    const int64_t R = t.kernel.rows;
    const int64_t end = std::min(m.rows.end, t.p.M / R) - m.rows.begin;
    if (t.kernel.column == nullptr || units() < t.kernel.column_units || ring() < 2 || i >= end)
      return i;
    t.kernel.column(
        {units(), end - i, a(i), R * m.units, b(), sums(), sums_step(), ring(), m.first && u0 == 0,
         this,
         [](void* piece, int64_t k, Soon& soon) { static_cast<const Piece*>(piece)->ask(k, soon); },
         [](void* piece, int64_t k) { static_cast<Piece*>(piece)->under_way(k); }});
    return end;
  }
  void run() {
    const int64_t tiles = m.rows.end - m.rows.begin;
    for (int64_t i = run_full(0); i < tiles; ++i) {
      if (tile(i) == done.tile) finish();  // an odd number of tiles, panel after panel
      Soon soon;
      ask(i, soon);
      if (!t.kernel.asks) ask_for_c(soon);
      t.kernel.run[tile_rows(i) - 1](units(), a(i), b(), tile(i), m.first && u0 == 0, soon);
      under_way(i);
    }
  }
};

void multiply(const Task& t, const Multiply& m) {
  const int64_t pieces = ceil_div(m.units, t.kernel.near);  // of a panel of B, of equal depth
  const int64_t near = round_up(ceil_div(m.units, pieces), t.kernel.step);
  alignas(64) float local[kMaxChunkRows * kMaxTileCols];
  Piece piece{t, m, near, local, m.cols.begin, 0};
  for (; piece.tj < m.cols.end; ++piece.tj)
    for (piece.u0 = 0; piece.u0 < m.units; piece.u0 += near) piece.run();
  piece.finish();
}

// Columns [n0, n0 + cols) of B, `units` from u0 on, into shared scratch by all threads. Where the
// neighbours of B lie along n, and the kernel takes it so, a piece is some rows of k from end to
// end, which memory gives faster than short parts of many rows.
void pack_shared(const Task& t, int64_t thread, int64_t threads, int64_t n0, int64_t cols,
                 int64_t u0, int64_t units) {
  constexpr int64_t kUnits = 64;
  const int64_t W = t.kernel.cols, col_tiles = ceil_div(cols, W);
  const bool by_rows = t.kernel.copies_b && t.p.b.col_stride == 1;
  const int64_t pieces =
      by_rows ? ceil_div(units, kUnits) : std::min(col_tiles, threads == 1 ? 1 : 4 * threads);
  for (int64_t i; (i = t.team.pack.fetch_add(1)) < pieces;) {
    const Range panels = by_rows ? Range{0, col_tiles} : share(col_tiles, pieces, i);
    const int64_t from = by_rows ? i * kUnits : 0, first = panels.begin * W;
    pack_panels(t.p.b, t.p.K, t.kernel, n0 + first, std::min(panels.end * W, cols) - first,
                u0 + from, by_rows ? std::min(kUnits, units - from) : units, W * units,
                t.base + first * units + from * W);
  }
  t.team.wait(threads);
  if (thread == 0) t.team.pack = 0;
}

// B is packed block by block into shared scratch by all threads, then used by all.
void run_blocked(const Task& t, int64_t thread, int64_t threads) {
  const MatmulProblem& p = t.p;
  const Blocking& s = t.s;
  const int64_t R = t.kernel.rows, W = t.kernel.cols;
  float* b_block = t.base;
  float* waiting = s.depth_blocks == 1 ? nullptr : b_block + lines(s.b_floats);
  float* a_chunk = t.own(thread);

  for (int64_t m0 = 0; m0 < p.M; m0 += s.tall) {
    const int64_t rows = std::min(s.tall, p.M - m0), row_tiles = ceil_div(rows, R);
    for (int64_t n0 = 0; n0 < p.N; n0 += s.wide) {
      const int64_t cols = std::min(s.wide, p.N - n0), col_tiles = ceil_div(cols, W);
      // Pieces of C: `slabs` of row tiles, none above a chunk, by `grid` groups of column tiles.
      // The last pieces of rows that want finishing are whole rows.
      const bool whole_rows = p.finish.rows != nullptr && n0 + cols == p.N;
      const int64_t grid = whole_rows ? 1 : grid_columns(row_tiles, col_tiles, threads);
      const int64_t slabs = round_up(ceil_div(row_tiles, s.chunk / R), threads / grid);
      for (int64_t block = 0; block < s.depth_blocks; ++block) {
        const int64_t u0 = block * s.depth, units = std::min(s.depth, s.units - u0);
        pack_shared(t, thread, threads, n0, cols, u0, units);
        const bool last = block + 1 == s.depth_blocks;
        for (int64_t i; (i = t.team.multiply.fetch_add(1)) < slabs * grid;) {
          const Range r = share(row_tiles, slabs, i / grid), q = share(col_tiles, grid, i % grid);
          if (r.begin == r.end || q.begin == q.end) continue;
          const int64_t count = std::min(r.end * R, rows) - r.begin * R;
          t.pack_a(m0 + r.begin * R, count, u0, units, a_chunk);
          float* wait =
              waiting == nullptr ? nullptr : waiting + (r.begin * col_tiles + q.begin) * R * W;
          multiply(t, {{m0 / R + r.begin, m0 / R + r.end},
                       {n0 / W + q.begin, n0 / W + q.end},
                       units,
                       a_chunk,
                       b_block + q.begin * W * units,
                       W * units,
                       wait,
                       col_tiles,
                       block == 0,
                       last});
          if (whole_rows && last) p.finish.rows(p.finish.context, m0 + r.begin * R, count);
        }
        t.team.wait(threads);
        if (thread == 0) t.team.multiply = 0;
      }
    }
  }
}

// B is packed already, or first of all: a piece of C needs nothing of the other threads, and a
// chunk of A is packed once for all columns of the piece.
void run_packed(const Task& t, int64_t thread, int64_t threads) {
  const MatmulProblem& p = t.p;
  const Blocking& s = t.s;
  if (s.own_copy) pack_shared(t, thread, threads, 0, p.N, 0, s.units);
  const int64_t R = t.kernel.rows, W = t.kernel.cols;
  float* a_chunk = t.own(thread);
  float* waiting = s.depth_blocks == 1 ? nullptr : a_chunk + lines(s.a_floats);
  const int64_t row_tiles = ceil_div(p.M, R), col_tiles = ceil_div(p.N, W);
  const int64_t grid = p.finish.rows != nullptr ? 1 : grid_columns(row_tiles, col_tiles, threads);
  const int64_t slabs = round_up(ceil_div(row_tiles, s.chunk / R), threads / grid);
  for (int64_t i; (i = t.team.multiply.fetch_add(1)) < slabs * grid;) {
    const Range r = share(row_tiles, slabs, i / grid), q = share(col_tiles, grid, i % grid);
    const int64_t count = std::min(r.end * R, p.M) - r.begin * R;
    if (r.begin == r.end) continue;
    for (int64_t j = q.begin; j < q.end; j += s.wide / W) {
      const int64_t j1 = std::min(j + s.wide / W, q.end);
      for (int64_t block = 0; block < s.depth_blocks; ++block) {
        const int64_t u0 = block * s.depth, units = std::min(s.depth, s.units - u0);
        t.pack_a(r.begin * R, count, u0, units, a_chunk);
        multiply(t, {r,
                     {j, j1},
                     units,
                     a_chunk,
                     t.packed_panel(j, u0),
                     W * s.units,
                     waiting,
                     j1 - j,
                     block == 0,
                     block + 1 == s.depth_blocks});
      }
    }
    if (p.finish.rows != nullptr) p.finish.rows(p.finish.context, r.begin * R, count);
  }
}

void run_few_rows(const Task& t, int64_t thread, int64_t threads) {
  const MatmulProblem& p = t.p;
  const Blocking& s = t.s;
  const int64_t R = t.kernel.rows, W = t.kernel.cols, row_tiles = ceil_div(p.M, R);
  float* a_block = t.own(thread);
  float* slice = a_block + lines(s.a_floats);
  const Range mine = share(ceil_div(p.N, W), threads, thread);
  // Neighbours in k: one panel, deep. Neighbours in n: several panels, shallow, for long runs.
  const int64_t panels = s.packed || p.b.row_stride == 1 ? 1 : kFewRowsPanels * kMaxTileCols / W;
  const int64_t slice_depth = s.packed ? s.depth : kSlice / (panels * W);
  alignas(64) float tiles[2][kFewRowsPanels * kMaxTileCols * kMaxTileRows];
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
        if (!s.packed) t.pack_b(j0 * W, cols, u0 + v0, units, slice);
        for (int64_t j = j0; j < j1; ++j)
          for (int64_t i = 0; i < row_tiles; ++i) {
            const int64_t tile_rows = std::min(R, p.M - i * R);
            const float* b = s.packed ? t.packed_panel(j, u0) : slice + (j - j0) * W * units;
            t.kernel.run[tile_rows - 1](
                units, a_block + i * R * block_units + v0 * round_up(tile_rows, t.kernel.row_step),
                b, tiles[i] + (j - j0) * R * W, u0 + v0 == 0, {});
          }
      }
    }
    for (int64_t j = j0; j < j1; ++j)
      for (int64_t i = 0; i < row_tiles; ++i)
        finish_tile(p, tiles[i] + (j - j0) * R * W, W, i * R, j * W, std::min(R, p.M - i * R),
                    std::min(W, p.N - j * W));
  }
  if (p.finish.rows != nullptr) {
    t.team.wait(threads);
    if (thread == 0) p.finish.rows(p.finish.context, 0, p.M);
  }
}

void run(const Task& t, int64_t thread, int64_t threads) {
  if (t.kernel.enter != nullptr) t.kernel.enter();
  if (t.s.few_rows)
    run_few_rows(t, thread, threads);
  else if (t.s.packed || t.s.own_copy)
    run_packed(t, thread, threads);
  else
    run_blocked(t, thread, threads);
  _mm_sfence();  // lines written past the caches are there before anybody is told
  if (t.kernel.leave != nullptr) t.kernel.leave();
}

// A and B across k, C a plain f32.
bool may_turn(const MatmulProblem& p) {
  return p.c_dtype == DType::f32 && p.bias == nullptr && p.finish.tile == nullptr &&
         p.finish.rows == nullptr && p.b_packed == nullptr && p.a.row_stride == 1 &&
         p.b.col_stride == 1;
}

// The product whose C is the given one's, turned where it lies.
MatmulProblem turned_around(const MatmulProblem& p) {
  MatmulProblem q = p;
  std::swap(q.M, q.N);
  q.a = {p.b.data, p.b.dtype, p.b.col_stride, p.b.row_stride};
  q.b = {p.a.data, p.a.dtype, p.a.col_stride, p.a.row_stride};
  return q;
}

}  // namespace

int64_t blocked_scratch_bytes(int64_t M, int64_t N, int64_t K, bool b_packed,
                              const TileKernel& kernel, int threads) {
  if (M <= 0 || N <= 0 || K <= 0) return 0;
  return (most_floats(M, N, K, b_packed, kernel, threads) + kLine) *
         static_cast<int64_t>(sizeof(float));
}

int64_t packed_bytes(int64_t K, int64_t N, const TileKernel& kernel) {
  if (K <= 0 || N <= 0) return 0;
  return round_up(N, kernel.cols) * units_of(K, kernel) * static_cast<int64_t>(sizeof(float));
}

void pack_whole(void* out, const MatrixView& b, int64_t K, int64_t N, const TileKernel& kernel,
                [[maybe_unused]] int threads) {
  const int64_t units = units_of(K, kernel), W = kernel.cols, panels = ceil_div(N, W);
  // Four panels a piece: 128 neighbours in n for a B that lies along n.
  const int64_t pieces = ceil_div(panels, 4);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t n0 = i * 4 * W;
    pack_panels(b, K, kernel, n0, std::min(N, n0 + 4 * W) - n0, 0, units, W * units,
                static_cast<float*>(out) + n0 * units);
  }
}

void matmul_blocked(const MatmulProblem& given, const TileKernel& kernel, void* scratch,
                    int threads) {
  const bool turned = may_turn(given) && turning_pays(given.M, given.N, given.K, kernel, threads);
  const MatmulProblem p = turned ? turned_around(given) : given;
  const Blocking s =
      make_blocking(p.M, p.N, p.K, p.a.col_stride == 1, p.b_packed != nullptr, kernel, threads);
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  Team team;
  const Task t{p,    kernel, s, reinterpret_cast<float*>((address + 63) & ~uintptr_t{63}),
               team, turned};
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
